package io.queryabletopics;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.kafka010.KafkaBatchInputPartition;
import org.apache.spark.sql.kafka010.KafkaBatchPartitionReader;
import org.apache.spark.sql.kafka010.KafkaOffsetRange;
import org.apache.spark.sql.kafka010.KafkaSourcePartitionOffset;

/**
 * Read a partition in Real-Time Mode: with Spark's own reader until the partition has caught up, and then with the consumer that the
 * query's tasks share.
 */
public final class SharingReader implements SupportsRealTimeRead {
  /** A partition without a record for so long is taken to have caught up; if it has not, the shared consumer finds a backlog. */
  private static final long QUIET_MS = 2;

  private final KafkaBatchInputPartition source;
  private final LentPartition partition;
  private final SharedConsumer shared; // null: this task always reads by itself
  private final BacklogTurn turn = new BacklogTurn();
  private KafkaBatchPartitionReader own; // null while the partition is lent
  private boolean leads;
  private InternalRow row;

  public SharingReader(KafkaBatchInputPartition source) {
    this.source = source;
    long from = source.offsetRange().fromOffset();
    partition = new LentPartition(source.offsetRange().topicPartition(), from);
    String query = TaskContext.get().getLocalProperty("sql.streaming.queryId"); // StreamExecution.QUERY_ID_KEY
    boolean alone = query == null || from < 0 || TaskContext.get().numPartitions() == 1;
    shared = alone ? null : SharedConsumer.of(query, source.executorKafkaParams(), source.includeHeaders());
  }

  /** Return Spark's own reader of a partition, from an offset on. */
  public static KafkaBatchPartitionReader ownReader(KafkaBatchInputPartition source, long from) {
    KafkaOffsetRange range = source.offsetRange();
    return new KafkaBatchPartitionReader(
        new KafkaOffsetRange(range.topicPartition(), from, range.untilOffset(), range.preferredLoc()),
        source.executorKafkaParams(), source.pollTimeoutMs(), source.failOnDataLoss(), source.includeHeaders());
  }

  public SupportsRealTimeRead.RecordStatus nextWithTimeout(Long startMs, Long timeoutMs) throws IOException {
    long nowMs = startMs.longValue();
    long untilMs = nowMs + timeoutMs.longValue();
    boolean found = false;
    while (!found && nowMs < untilMs) {
      found = leads ? readShared(untilMs) : readAlone(nowMs, untilMs);
      nowMs = found ? nowMs : System.currentTimeMillis();
    }
    return SupportsRealTimeRead.RecordStatus.newStatusWithoutArrivalTime(found);
  }

  private boolean readShared(long untilMs) throws IOException {
    row = shared.readNext(untilMs);
    leads = row != null || shared.isLedBy(partition);
    return row != null;
  }

  private boolean readAlone(long nowMs, long untilMs) throws IOException {
    if (own == null) {
      own = ownReader(source, partition.next);
    }
    RowWriter writer = shared == null ? null : RowWriter.ofThread(); // null: the rows go elsewhere
    long restMs = writer == null ? Long.MAX_VALUE : shared.restLeftMs();
    boolean inTurn = turn.await(untilMs - nowMs);
    long waitMs = inTurn ? 0 : Math.min(restMs > 0 ? restMs : QUIET_MS, untilMs - nowMs); // the others wait for the turn
    if (own.nextWithTimeout(Long.valueOf(nowMs), Long.valueOf(waitMs)).hasRecord()) {
      row = own.get();
      partition.next = own.getOffset().partitionOffset();
      return true;
    }
    turn.end();
    if (restMs == 0 && !inTurn) {
      own.close();
      own = null;
      leads = shared.lend(partition, writer);
    }
    return false;
  }

  /** Return the offset of the next record. Spark asks for it at the end of the batch, when no more records are read. */
  public PartitionOffset getOffset() {
    turn.end();
    try {
      if (leads) {
        shared.giveBack();
        leads = false;
      }
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    return new KafkaSourcePartitionOffset(partition.of, partition.next);
  }

  public boolean next() {
    throw new UnsupportedOperationException("a reader of Real-Time Mode reads no batch of a given end");
  }

  public InternalRow get() {
    return row;
  }

  public CustomTaskMetric[] currentMetricsValues() {
    return new CustomTaskMetric[0];
  }

  public void close() {
    turn.end();
    if (leads) { // without the end of a batch
      shared.fail();
    }
    if (own != null) {
      own.close();
    }
    if (shared != null) {
      shared.leave();
    }
  }
}
