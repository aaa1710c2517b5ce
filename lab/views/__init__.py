"""What is shown: views, which the CLI prints, the API answers with and a client reads.

Times are UTC epoch seconds, durations seconds, sizes bytes. A ``disk`` of None is as large as the
image's.
"""
