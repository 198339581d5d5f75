"""The ledger of a run: every rank-second from submit to the end in one account and no two.

`read` gathers what a run folder holds into records; `timeline`, `ranks` and `ledger` are pure: records in, ledger out.
"""
