"""The checks of `reconsume doctor`: what may keep a group from working, one file a subject.

`findings` is what a check says, `runner` runs them side by side, `cluster` is how they ask Kafka. A check is a function
from what it needs to its findings; it changes nothing, and raises BrokerError where it gets no answer.
"""
