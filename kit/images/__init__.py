"""Images: sources -> one .sqsh, named by its digest, in a store that many users and hosts share; pinned by a lock."""
