"""What the stores that keep tables share: the rules of the contract as functions of a database connection.

store       the async methods, over a way to write and a way to read
rollouts    state, fences, marks, outcomes, snapshots
entries     putting: what is new is stored, the rest is a reference
lineage     which stored sequence a prompt continues
reading     rows back to entries, every digest derived again
retention   what has to go, and when
texts       requests and output items, apart from the tokens
codec       entries to columns and back
grouping    operations that wait together, and who awaits them
connection  what is asked of a database
"""
