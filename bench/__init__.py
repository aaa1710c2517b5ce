"""The benchmark: how long a lab takes and what it costs, beside what it ought to.

::

    __main__        what is measured, in order; ``make bench``
      measure       one function a figure
      service       the same labs through the service
      firmware      cold labs, as bhyve has them
        labs        the program as a user runs it, and a home that vanishes afterwards
        probe       memory, disk and SQL, looked at from outside
      machine       the facts without which figures mean nothing
      figures       numbers: medians, targets, verdicts
      report        figures as text, Markdown, JSON
"""
