"""Images: build or import one as a .sqsh, name it by its digest, keep it in a store shared by users and hosts, and pin it by a
lock.
"""
