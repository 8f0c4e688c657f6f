"""A sample of the questions of a period that nobody chose, judged by people.

Whoever has a sample's file and the log can draw it again. The rest of this text says how; words, JSON, times and months are those
of `audit/__init__.py`, and `tests/second_draw.py` was written from it alone.

1. The population
    `statement` is an object with exactly these members:

        format      "affidavit population 1"
        origin      of the log's checkpoints
        from, to    times, or null: the questions with from <= timestamp < to
        strata      a list of one or more of "reason", "confidence" and "book", each at most once
        size        how many are to be drawn, a whole number of at least 1
        heads       a list of objects with month, size and root (hex): the newest anchored head of each month of the period,
                    the months rising
        counts      a list of lists [stratum, records], in the order of the strata
        digest      hex

    Records of the population are in a month of `heads` and have a leaf_index below its size; their outcome is answered or refused,
    they have a source_mode, and their timestamp is in the period. The stratum of a record is the list of its values of `reason`,
    `confidence_level` and `book_id`, of those and in the order that `strata` says, with null for one that it does not have. Strata are
    ordered by the bytes of their canonical JSON. `digest` is the SHA-256 of one line for each record, by month and leaf_index:

        <log_id><20><canonical JSON of its stratum><0a>

2. The row that states it
    The log has a row with the endpoint `affidavit audit sample`, the outcome `recorded` and the reason

        population <hex of SHA-256 of the statement's canonical JSON>

    Its log_id is the sample's id. It is in the tree of its own month at `leaf_index`.

3. The seed
    Of the anchored heads of that row's month, the one with the smallest size above `leaf_index` is the first that was signed with
    the row in its tree. The seed is the SHA-256 of the text of its note that is signed: all lines before the first empty one, each with
    its 0x0a. Signature lines give no seed, because readers ignore those of unknown keys. So the population was stated before anybody could know the seed.

4. How many of each stratum
    Proportional, and at least one of each. With `size` n, N records in all and N_h in a stratum: if n >= N, all. Otherwise n must not
    be less than the number of strata. Each stratum begins with max(1, floor(n N_h / N)). While these are more than n in all, the stratum with
    more than one whose n N_h - N n_h is smallest gets one less; while they are fewer, the stratum with n_h < N_h whose n N_h - N n_h is
    largest gets one more. Of equals the first stratum in their order changes.

5. The draw
    Of each stratum the n_h records with the smallest SHA-256(seed ‖ log_id); seed is its 32 bytes, log_id its 36 characters. The
    sample is these records in the order of those digests, over all strata.

6. The file
    Canonical JSON and 0x0a, an object with exactly these members: format ("affidavit sample 1"), sample (the id), statement,
    leaf_index, head (the note with its signature lines), seed (hex), records (a list of objects with log_id and stratum, in the sample's order).
"""
