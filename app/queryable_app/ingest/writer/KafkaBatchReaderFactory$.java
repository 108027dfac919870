package org.apache.spark.sql.kafka010;

import io.queryabletopics.SharingReader;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/**
 * Make the readers of Kafka's partitions, in place of the class of this name in Spark's connector: the JVM finds this one first.
 *
 * Strategy: a reader of Real-Time Mode, whose range has no end, is a `SharingReader`. Each other one is Spark's own.
 */
public class KafkaBatchReaderFactory$ implements PartitionReaderFactory {
  public static final KafkaBatchReaderFactory$ MODULE$ = new KafkaBatchReaderFactory$();

  private static final long serialVersionUID = 1L;

  public PartitionReader createReader(InputPartition partition) {
    KafkaBatchInputPartition of = (KafkaBatchInputPartition) partition;
    if (of.offsetRange().untilOffset() == Long.MAX_VALUE) {
      return new SharingReader(of);
    }
    return SharingReader.ownReader(of, of.offsetRange().fromOffset());
  }
}
