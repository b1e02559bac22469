"""`docs/migrate-java.md` has each public getter and option of the old APIs in one row, and nothing that they lack.

The lists are what `javap -public` says of rocketmq-common and rocketmq-client 5.3.1, and of spring-kafka 3.3.1. Where
these jars are in Maven's local repository, they are compared with it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "migrate-java.md").read_text(encoding="utf-8")
MAVEN = Path.home() / ".m2" / "repository"
JARS = {
    "org.apache.rocketmq": [
        MAVEN / f"org/apache/rocketmq/rocketmq-{name}/5.3.1/rocketmq-{name}-5.3.1.jar" for name in ("common", "client")
    ],
    "org.springframework.kafka": [MAVEN / "org/springframework/kafka/spring-kafka/3.3.1/spring-kafka-3.3.1.jar"],
}
MESSAGE, LISTENER = "org.apache.rocketmq.common.message", "org.apache.rocketmq.client.consumer.listener"
CONSUMER, ANNOTATION = "org.apache.rocketmq.client.consumer", "org.springframework.kafka.annotation"
APIS = {
    f"{MESSAGE}.Message": """
        getBody getBuyerId getDelayTimeLevel getDelayTimeMs getDelayTimeSec getDeliverTimeMs getFlag getKeys
        getProperties getProperty getTags getTopic getTransactionId getUserProperty isWaitStoreMsgOK""",
    f"{MESSAGE}.MessageExt": """
        getBodyCRC getBornHost getBornHostBytes getBornHostNameString getBornHostString getBornTimestamp getBrokerName
        getCommitLogOffset getGroupSysFlag getMsgId getPreparedTransactionOffset getQueueId getQueueOffset
        getReconsumeTimes getStoreHost getStoreHostBytes getStoreSize getStoreTimestamp getSysFlag getTopicSysFlag""",
    f"{LISTENER}.ConsumeConcurrentlyContext": """
        getAckIndex getDelayLevelWhenNextConsume getMessageQueue setAckIndex setDelayLevelWhenNextConsume""",
    f"{LISTENER}.ConsumeOrderlyContext": """
        getMessageQueue getSuspendCurrentQueueTimeMillis isAutoCommit setAutoCommit
        setSuspendCurrentQueueTimeMillis""",
    f"{CONSUMER}.DefaultMQPushConsumer": """
        adjustThreadPoolNumsThreshold allocateMessageQueueStrategy awaitTerminationMillisWhenShutdown
        consumeConcurrentlyMaxSpan consumeFromWhere consumeMessageBatchMaxSize consumeThreadMax consumeThreadMin
        consumeTimeout consumeTimestamp consumerGroup defaultMQPushConsumerImpl isClientRebalance isConsumeOrderly
        isPause isPostSubscriptionWhenPull isUnitMode maxReconsumeTimes messageListener messageModel
        messageQueueListener offsetStore popBatchNums popInvisibleTime popThresholdForQueue pullBatchSize
        pullBatchSizeInBytes pullInterval pullThresholdForQueue pullThresholdForTopic pullThresholdSizeForQueue
        pullThresholdSizeForTopic subscription suspendCurrentQueueTimeMillis traceDispatcher useTLS""",
    f"{ANNOTATION}.RetryableTopic": """
        attempts autoCreateTopics autoStartDltHandler backoff concurrency dltStrategy dltTopicSuffix
        exceptionBasedDltRouting exclude excludeNames include includeNames kafkaTemplate listenerContainerFactory
        numPartitions replicationFactor retryTopicSuffix sameIntervalTopicReuseStrategy timeout topicSuffixingStrategy
        traversingCauses""",
    f"{ANNOTATION}.KafkaListener": """
        autoStartup batch beanRef clientIdPrefix concurrency containerFactory containerGroup containerPostProcessor
        contentTypeConverter errorHandler filter groupId id idIsGroup info properties splitIterables topicPartitions
        topicPattern topics""",
}


def rows_of(class_name: str) -> list[str]:
    """The names in the first column of the table whose heading has this class."""
    simple = class_name.rpartition(".")[2]
    (section,) = [part for part in PAGE.split("\n## ")[1:] if f"{simple}`" in part.partition("\n")[0]]
    cells = re.findall(r"(?m)^\| (`[^|]+) \|", section)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


@pytest.mark.parametrize("class_name", [name for name in APIS if "Context" not in name])
def test_each_getter_and_option_has_one_row(class_name: str) -> None:
    assert sorted(rows_of(class_name)) == sorted(APIS[class_name].split())


def test_the_two_contexts_share_a_table() -> None:
    contexts = {name for api, names in APIS.items() if "Context" in api for name in names.split()}
    assert sorted(rows_of(f"{LISTENER}.ConsumeOrderlyContext")) == sorted(contexts)


def members_by_javap(class_name: str) -> set[str]:
    jars = next(paths for group, paths in JARS.items() if class_name.startswith(group))
    if shutil.which("javap") is None or not all(jar.exists() for jar in jars):
        pytest.skip("the old libraries are not in Maven's local repository")
    command = ["javap", "-public", "-cp", ":".join(map(str, jars)), class_name]
    names = set(re.findall(r"(\w+)\(", subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    if class_name.startswith(ANNOTATION):
        return names
    accessors = {name for name in names if re.match(r"(get|is|set)[A-Z]", name)}
    if "Context" in class_name:
        return accessors
    if "message" in class_name:
        return {name for name in accessors if not name.startswith("set")}
    getters = {name for name in accessors if name.startswith("is")}
    options = {name[3:] for name in accessors if not name.startswith("is")} - {name[2:] for name in getters}
    return getters | {name[:1].lower() + name[1:] for name in options}


@pytest.mark.parametrize("class_name", APIS)
def test_the_lists_are_those_of_the_real_libraries(class_name: str) -> None:
    assert members_by_javap(class_name) == set(APIS[class_name].split())
