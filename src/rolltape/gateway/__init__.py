"""The gateway: all I/O of a call. It decodes nothing and records nothing itself; it puts the pieces in order.

address.py    which rollout a request belongs to, and whether it may say so. Pure
exchange.py   one HTTP exchange: bounded body in, bytes out, and whether the client is still there
admission.py  pause, budgets, and calls in flight
call.py       the order of one call: intent, generation, durable entry, then the event a harness may act on
control.py    rollouts, freezing, rows, outcomes, policy - for those who hold the control token
app.py        routes
serve.py      start, ready line, stop
"""
