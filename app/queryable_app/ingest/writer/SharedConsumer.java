package io.queryabletopics;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.kafka010.KafkaRecordToRowConverter;
import scala.Function1;

/**
 * Read the partitions of several tasks of one query with one consumer of Kafka, in the thread of one of them, which leads.
 *
 * Strategy: a consumer for each partition asks the broker for each record, and wakes a thread for each. One consumer for all gets the
 * records that arrive together in one response. A task that has caught up lends its partition, and waits. The leader reads all of
 * them and writes their rows to its own connection, those of one response together. If it falls behind, or when its batch ends,
 * each task gets its partition back. Whenever a partition changes its connection, serve has first applied what the old one brought,
 * so a row cannot overtake an older one.
 *
 * `readNext`, `giveBack` and `fail` are for the leader's thread, and everything else for each task's.
 */
public final class SharedConsumer {
  /** So many records that are there at once are a backlog, which the tasks read faster, each by itself. */
  private static final int BACKLOG_RECORDS = 1000;
  /** For so long the tasks read by themselves, at first and after a backlog: twice as long after each that follows soon. */
  private static final long REST_MS = 1000;
  private static final long REST_MS_MAX = 60000;
  private static final long SOON_MS = 10000;
  /** The broker answers so soon even without a record. A partition that joins waits for that answer. */
  private static final String FETCH_WAIT_MS = "100";
  private static final long KILL_MS_MAX = 10000;

  private static final Map BY_QUERY = new HashMap();

  private final String query;
  private final Map settings;
  private final int backlog;
  private final Function1 toRow;
  private final Map lent = new HashMap(); // LentPartition by TopicPartition
  private int users;
  private KafkaConsumer consumer; // null until a task leads
  private LentPartition leader;
  private RowWriter writer; // of the leader
  private volatile boolean joined; // the consumer lacks a partition that was lent
  private boolean failed;
  private volatile long restUntilMs = System.currentTimeMillis() + REST_MS;
  private long restMs = REST_MS;
  private long sharedSinceMs;
  private LentPartition[] byPartition = new LentPartition[0]; // those that the consumer reads
  private Iterator records = Collections.emptyIterator(); // of the last response, not yet read

  private SharedConsumer(String query, Map settings, boolean withHeaders) {
    this.query = query;
    this.settings = new HashMap(settings);
    this.settings.putIfAbsent("fetch.max.wait.ms", FETCH_WAIT_MS);
    backlog = Math.min(BACKLOG_RECORDS, Integer.parseInt(this.settings.getOrDefault("max.poll.records", "500").toString()));
    toRow = new KafkaRecordToRowConverter().toUnsafeRowProjector(withHeaders);
  }

  /** Return the consumer of a query. Each task that calls this calls `leave` at its end. */
  static SharedConsumer of(String query, Map settings, boolean withHeaders) {
    synchronized (BY_QUERY) {
      SharedConsumer shared = (SharedConsumer) BY_QUERY.get(query);
      if (shared == null) {
        shared = new SharedConsumer(query, settings, withHeaders);
        BY_QUERY.put(query, shared);
      }
      shared.users++;
      return shared;
    }
  }

  void leave() {
    synchronized (BY_QUERY) {
      if (--users == 0) {
        BY_QUERY.remove(query);
        close();
      }
    }
  }

  /** Return for how long tasks still read by themselves. */
  long restLeftMs() {
    return Math.max(0, restUntilMs - System.currentTimeMillis());
  }

  /**
   * Lend a partition whose rows, so far, have all been written. Return true if this task leads now, and otherwise false as soon as
   * the partition has come back.
   */
  boolean lend(LentPartition partition, RowWriter ofTask) throws IOException {
    ofTask.settle();
    synchronized (this) {
      partition.lent = true;
      lent.put(partition.of, partition);
      joined = true;
      if (leader == null && !failed) {
        if (consumer == null) {
          consumer = new KafkaConsumer(settings);
        }
        leader = partition;
        writer = ofTask;
        writer.expectFlushes(true);
        sharedSinceMs = System.currentTimeMillis();
        return true;
      }
      if (!failed) {
        consumer.wakeup();
      }
      try {
        while (partition.lent && !failed) {
          wait();
        }
        if (failed) { // Spark ends this task because the leader's has failed: that one has the reason
          wait(KILL_MS_MAX);
          throw new IllegalStateException("the task that reads for this one has failed");
        }
      } catch (InterruptedException e) {
        throw new InterruptException(e);
      }
      return false;
    }
  }

  /** Return the next row, or null if the time is over or the partitions had to be given back. */
  InternalRow readNext(long untilMs) throws IOException {
    while (!records.hasNext()) {
      writer.flush();
      long leftMs = untilMs - System.currentTimeMillis();
      if (leftMs <= 0) {
        return null;
      }
      if (joined) {
        assign();
      }
      ConsumerRecords polled;
      try {
        polled = consumer.poll(Duration.ofMillis(leftMs));
      } catch (WakeupException e) {
        continue; // a partition was lent
      }
      if (polled.count() >= backlog) {
        long nowMs = System.currentTimeMillis();
        restMs = nowMs - sharedSinceMs < SOON_MS ? Math.min(2 * restMs, REST_MS_MAX) : REST_MS;
        restUntilMs = nowMs + restMs;
        giveBack();
        return null;
      }
      records = polled.iterator();
    }
    ConsumerRecord record = (ConsumerRecord) records.next();
    byPartition[record.partition()].next = record.offset() + 1;
    return (InternalRow) toRow.apply(record);
  }

  /** Give the partitions back, each from the record on that follows the last one that was read. The leader calls this. */
  void giveBack() throws IOException {
    writer.expectFlushes(false);
    writer.settle();
    synchronized (this) {
      consumer.unsubscribe();
      byPartition = new LentPartition[0];
      records = Collections.emptyIterator();
      leader = null;
      Iterator each = lent.values().iterator();
      while (each.hasNext()) {
        ((LentPartition) each.next()).lent = false;
      }
      lent.clear();
      notifyAll();
    }
  }

  /** End the tasks that wait for this one, the leader, which has failed. What they would write could overtake its rows. */
  void fail() {
    synchronized (this) {
      failed = true;
      notifyAll();
    }
  }

  boolean isLedBy(LentPartition partition) {
    synchronized (this) {
      return leader == partition;
    }
  }

  // Janino makes private methods static, and a synchronized one would lock the class; hence the blocks.
  private void assign() {
    synchronized (this) {
      joined = false;
      List all = new ArrayList(lent.keySet());
      consumer.assign(all); // partitions that it has already keep their positions
      for (int i = 0; i < all.size(); i++) {
        LentPartition each = (LentPartition) lent.get(all.get(i));
        int partition = each.of.partition();
        if (partition >= byPartition.length) {
          byPartition = (LentPartition[]) Arrays.copyOf(byPartition, partition + 1);
        }
        if (byPartition[partition] == null) {
          byPartition[partition] = each;
          consumer.seek(each.of, each.next);
        }
      }
    }
  }

  private void close() {
    synchronized (this) {
      if (consumer != null) {
        try {
          consumer.close(Duration.ZERO);
        } catch (RuntimeException ignored) {
          // The thread was interrupted; the connections are closed anyway.
        }
        consumer = null;
      }
    }
  }
}
