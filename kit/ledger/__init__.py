"""The ledger of a run: every rank-second from submit to the end is in exactly one account.

`read_run` gathers the files of a run folder into records. `timeline`, `rank_account` and `ledger` are pure: they turn records into
a ledger.
"""
