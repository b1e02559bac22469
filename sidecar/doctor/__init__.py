"""The checks of `reconsume doctor`: what may keep a group from working, one file for each subject.

`findings` holds the results of a check, `runner` runs the checks side by side, `kafka.admin.cluster` sends their
requests. A check is a function from what it needs to its findings. It changes nothing, and raises BrokerError if it
gets no answer.
"""
