package io.queryabletopics;

import org.apache.kafka.common.TopicPartition;

/** Hold how far a partition is read, by its own task or, while it is lent, by the one that leads. */
final class LentPartition {
  final TopicPartition of;
  long next; // the offset from which to read on
  boolean lent;

  LentPartition(TopicPartition of, long next) {
    this.of = of;
    this.next = next;
  }
}
