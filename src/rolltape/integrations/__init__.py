"""Rolltape inside other frameworks: adapters that speak a framework's own classes. Nothing else imports them."""
