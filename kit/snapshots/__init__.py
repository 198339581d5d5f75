"""Snapshots: a job's workspace as it was at submit, kept once per content, so that a run is its code.

| module | what it does |
|---|---|
| `chosen` | which files of a folder are its workspace: what git does not ignore, or all but `.kitignore`'s |
| `listing` | a tree in text: its files, modes, links and digests; the digest of that text is the tree's hash |
| `scan` | reads a workspace into a listing, with a cache of what was read before; the limits on sizes |
| `store` | trees and the files that they share, in a folder beside the runs; pruning |
| `patch` | how a workspace differs from its commit |
| `changes` | how two trees differ |
"""
