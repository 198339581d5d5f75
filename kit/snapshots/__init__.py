"""Snapshots: copies of a job's workspace at submit, stored once per content, so that each run keeps its code.

| module | what it does |
|---|---|
| `chosen_files` | chooses the files of a workspace: those that git does not ignore, or all without those in `.kitignore` |
| `tree_listing` | a tree as text: its files, modes, links and digests; the digest of that text is the tree's hash |
| `scan` | reads a workspace into a listing, with a cache of earlier reads; checks the limits on sizes |
| `store` | stores trees and their shared files in a folder next to the runs; prunes them |
| `patch` | the difference between a workspace and its commit |
"""
