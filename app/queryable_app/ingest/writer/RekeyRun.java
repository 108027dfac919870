package io.queryabletopics;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReferenceArray;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Write what one run of the rekey job has to say to the internal topic: rows in envelopes, and markers of its progress.
 *
 * Strategy: a run lives from the start of the query to its end, over all its batches. It numbers the envelopes from each source
 * partition to each internal partition, so a lost one shows (wire/envelopes.py has the layout). The producer is idempotent, so it
 * neither repeats nor reorders. The first failed send ends the run: nothing is written afterwards, and the job starts another one.
 *
 * The driver begins the run, and owns all its source partitions. The tasks of its own JVM write them there. An executor borrows
 * a source partition for a task, with its numbers, and gives it back when everything is acknowledged. So a source partition has
 * one writer at a time, and its numbers go on wherever Spark runs the next task. What an executor takes with it when it dies is
 * never lent again: the run ends.
 *
 * In a view with windows every envelope has the clock of its source partition. The first row of a record moves it, before the row
 * is written. A start within a record brings a clock that the record has moved already.
 *
 * A thread writes markers when the run has advanced, at most every 50 ms. The language is what Janino compiles.
 */
public final class RekeyRun {
  private static final byte VERSION = 1;
  private static final int HEADER = 1 + 4 + 8 + 2 + 2 + 8 + 8 + 8;
  private static final byte[] MARKER_KEY = new byte[8];
  private static final byte[] NO_ROW = new byte[0];
  private static final long MARKER_NANOS = 50000000L, REPORT_NANOS = 200000000L;
  private static final int COUNTS = 4; // of `RekeySource.progress`, before the offset
  private static final HashMap RUNS = new HashMap(); // run → RekeyRun

  private final long run;
  private final String topic;
  private final int partitions;
  private final Map settings;
  private final KafkaProducer producer;
  private final AtomicReferenceArray sources; // RekeySource, or null where another JVM is the owner
  private final RekeyLoans loans; // to executors; null in an executor
  private final AtomicInteger joined = new AtomicInteger(); // executors in which a task of this run has begun
  private final Thread markers;
  private final Callback callback;
  private volatile Exception failed;
  private volatile boolean ended;
  private volatile boolean advanced;

  /**
   * Start a run, before its query.
   *
   * @param sourceId Kafka's id of the source topic, which the first markers carry
   * @param covered by source partition: the offset from which the run covers it
   * @param starts  by source partition: the offset of the first record that the query reads
   * @param aheadMs how far ahead of a clock is far; 0: the view has no windows
   * @param clocks  by source partition four numbers: how many rows of the first record are not needed, and its clock
   * @param trusted by source partition: from where the places of keys are remembered (KeyPlaces); null: rows add to groups
   */
  public static void start(long run, String topic, int partitions, Map settings, String sourceId, long[] covered,
      long[] starts, long aheadMs, long[] clocks, long[] trusted) {
    RekeyRun started = new RekeyRun(run, topic, partitions, settings, covered.length, true);
    started.begin(sourceId.getBytes(StandardCharsets.UTF_8), covered, starts, aheadMs, clocks, trusted);
    synchronized (RUNS) {
      RUNS.put(Long.valueOf(run), started);
    }
    started.markers.start();
  }

  /** Return the run, in an executor its part of it, or fail: a run never continues under another driver. */
  static RekeyRun of(long run) {
    synchronized (RUNS) {
      RekeyRun found = (RekeyRun) RUNS.get(Long.valueOf(run));
      if (found == null && RekeyExecutors.isExecutor()) {
        Object[] terms = RekeyExecutors.join(run);
        found = new RekeyRun(run, (String) terms[0], ((Integer) terms[1]).intValue(), (Map) terms[2],
            ((Integer) terms[3]).intValue(), false);
        RUNS.put(Long.valueOf(run), found);
        found.markers.start();
      }
      if (found == null) {
        throw new IllegalStateException("the run has ended");
      }
      return found;
    }
  }

  /** Return why the run has ended by itself, or null. */
  public static String failure(long run) {
    RekeyRun found = of(run);
    try {
      found.loans.check();
    } catch (IllegalStateException e) {
      found.fail(e);
    }
    Exception failed = found.failed;
    return failed == null ? null : failed.toString();
  }

  /** Return in how many executors a task of the run has begun. */
  public static int joined(long run) {
    return of(run).joined.get();
  }

  /** Return rows, null keys, bad records, dropped records, and then the next offset of each source partition. */
  public static String counts(long run) {
    RekeyRun found = of(run);
    long[] sums = new long[COUNTS];
    StringBuilder offsets = new StringBuilder();
    for (int from = 0; from < found.sources.length(); from++) {
      long[] progress = found.progress(from);
      for (int i = 0; i < COUNTS; i++) {
        sums[i] += progress[i];
      }
      offsets.append(' ').append(progress[COUNTS]);
    }
    return sums[0] + " " + sums[1] + " " + sums[2] + " " + sums[3] + offsets;
  }

  /** Move over source offsets without a record, if the run stands there. */
  public static void skip(long run, int from, long begin, long reached) {
    RekeyRun found = of(run);
    if (!found.loans.skip(from, begin, reached)) {
      found.move(from, begin, reached);
    }
  }

  /** End the run. What is not acknowledged yet may be lost. */
  public static void end(long run) {
    RekeyRun found;
    synchronized (RUNS) {
      found = (RekeyRun) RUNS.remove(Long.valueOf(run));
    }
    if (found != null) {
      found.ended = true;
      LockSupport.unpark(found.markers);
      found.producer.close(java.time.Duration.ofMillis(0));
    }
  }

  private RekeyRun(long run, String topic, int partitions, Map settings, int sources, boolean lends) {
    this.run = run;
    this.topic = topic;
    this.partitions = partitions;
    this.settings = settings;
    HashMap all = new HashMap(settings);
    all.put("acks", "all");
    all.put("enable.idempotence", "true");
    all.put("max.in.flight.requests.per.connection", "5");
    all.put("retries", String.valueOf(Integer.MAX_VALUE));
    all.put("linger.ms", "0");
    all.put("batch.size", "65536");
    all.put("buffer.memory", "33554432");
    all.put("max.request.size", "16777216");
    all.put("max.block.ms", "30000");
    all.put("request.timeout.ms", "10000");
    all.put("delivery.timeout.ms", "30000");
    all.put("partitioner.adaptive.partitioning.enable", "false");
    producer = new KafkaProducer(all, new ByteArraySerializer(), new ByteArraySerializer());
    this.sources = new AtomicReferenceArray(sources);
    loans = lends ? new RekeyLoans(sources) : null;
    callback = new Callback() {
      public void onCompletion(RecordMetadata metadata, Exception error) {
        if (error != null) {
          fail(error);
        }
      }
    };
    markers = new Thread(new Runnable() {
      public void run() {
        writeMarkers();
      }
    }, "rekey-markers");
    markers.setDaemon(true);
  }

  private void begin(byte[] sourceId, long[] covered, long[] starts, long aheadMs, long[] clocks, long[] trusted) {
    for (int from = 0; from < covered.length; from++) {
      KeyPlaces places = trusted == null ? null : new KeyPlaces(placesBytes(covered.length), trusted[from]);
      RekeySource source = new RekeySource(partitions, covered[from], starts[from], places);
      int row = (int) clocks[4 * from];
      if (aheadMs > 0) {
        source.clock = new SourceClock(clocks[4 * from + 1], (int) clocks[4 * from + 2], clocks[4 * from + 3], aheadMs);
        source.timed = row > 0 ? covered[from] : -1;
      }
      for (int to = 0; to < partitions; to++) {
        send(source, from, to, MARKER_KEY, covered[from], row, 0, System.currentTimeMillis(), sourceId);
      }
      sources.set(from, source);
    }
    advanced = true;
  }

  /** Write a row: what it adds to its group. */
  void row(int from, long offset, int row, int rows, long timestampMs, long eventMs, byte[] key, byte[] contribution) {
    check();
    RekeySource source = owned(from);
    synchronized (source) {
      require(source, from, offset);
      source.moveClock(offset, eventMs);
      int to = Partitioners.murmur2(key, partitions);
      send(source, from, to, key, offset, row, rows, timestampMs, contribution);
      source.rows++;
      if (row + 1 == rows) {
        source.next = offset + 1;
        source.marked[to] = offset + 1;
      }
    }
    advance();
  }

  /**
   * Write a record under its new key, and tell the partitions that may have an earlier row of its record key that it has left.
   *
   * @param key null: the record has no row any more
   * @param recordKey null: the record replaces no other one
   */
  void latest(int from, long offset, long timestampMs, byte[] key, byte[] recordKey, byte[] value, int why) {
    check();
    RekeySource source = owned(from);
    synchronized (source) {
      require(source, from, offset);
      int to = key == null ? KeyPlaces.NOWHERE : Partitioners.murmur2(key, partitions);
      if (recordKey != null) {
        tellLeft(source, from, to, offset, timestampMs, recordKey);
      }
      if (key != null) {
        send(source, from, to, key, offset, 0, 1, timestampMs, KeyedContent.row(recordKey, value));
        source.rows++;
        source.marked[to] = offset + 1;
      } else {
        count(source, why);
      }
      source.next = offset + 1;
    }
    advance();
  }

  private void tellLeft(RekeySource source, int from, int to, long offset, long timestampMs, byte[] recordKey) {
    KeyPlaces.Place known = source.places.of(recordKey);
    byte[] left = null;
    for (int other = 0; other < partitions; other++) {
      if (other == to) {
        continue;
      }
      if (known != null && known.partition != other) {
        source.reliesFrom[other] = Math.min(source.reliesFrom[other], known.offset);
        continue;
      }
      left = left == null ? KeyedContent.left(recordKey) : left;
      send(source, from, other, MARKER_KEY, offset, 0, 1, timestampMs, left);
      source.marked[other] = offset + 1;
    }
    source.places.put(recordKey, to, offset);
  }

  static final int NULL_KEY = 0, BAD = 1, DROPPED = 2, TOMBSTONE = 3;

  /** Note a row that is in no group. Its record moves the clock as any other. */
  void noGroup(int from, long offset, int row, int rows, long eventMs) {
    RekeySource source = owned(from);
    synchronized (source) {
      require(source, from, offset);
      source.moveClock(offset, eventMs);
      none(from, offset, row, rows, NULL_KEY);
    }
  }

  /** Note a row that adds nothing. */
  void none(int from, long offset, int row, int rows, int why) {
    check();
    RekeySource source = owned(from);
    synchronized (source) {
      require(source, from, offset);
      source.next = row + 1 == rows ? offset + 1 : source.next;
      count(source, why);
    }
    advance();
  }

  private static void count(RekeySource source, int why) {
    source.nullKeys += why == NULL_KEY ? 1 : 0;
    source.bad += why == BAD ? 1 : 0;
    source.dropped += why == DROPPED ? 1 : 0;
  }

  /** Return the bytes for the places of the keys of one source partition: together an eighth of the heap. */
  private static long placesBytes(int sources) {
    return Runtime.getRuntime().maxMemory() / 8 / sources;
  }

  /** Return when everything so far is written, or fail. */
  void flush() {
    producer.flush();
    check();
  }

  /** Give the source partition of a finished task back to the driver, if this is an executor. */
  void finish(int from) {
    if (loans == null) {
      RekeyExecutors.giveBack(run, from, part(from));
    }
  }

  /** Return what an executor needs to take part, and count it. */
  Object[] terms() {
    check();
    joined.incrementAndGet();
    return new Object[] {topic, Integer.valueOf(partitions), settings, Integer.valueOf(sources.length())};
  }

  /** Lend a source partition to an executor, or fail if another one has it. */
  RekeySource lend(int from) {
    check();
    synchronized (loans) {
      loans.begin(from, progress(from));
    }
    return part(from);
  }

  /** Take back what an executor has borrowed. */
  void takeBack(int from, RekeySource source) {
    synchronized (loans) {
      loans.end(from);
      sources.set(from, source);
    }
    advance();
  }

  /** Note the progress of an executor. Return the skips of its source partitions, or null if the run has ended. */
  static Map note(long run, Map progress, String failure) {
    RekeyRun found;
    synchronized (RUNS) {
      found = (RekeyRun) RUNS.get(Long.valueOf(run));
    }
    if (found == null) {
      return null;
    }
    if (failure != null) {
      found.fail(new IllegalStateException(failure));
    }
    return found.loans.note(progress);
  }

  private long[] progress(int from) {
    synchronized (loans) {
      long[] lent = loans.progress(from);
      return lent != null ? lent : ((RekeySource) sources.get(from)).progress();
    }
  }

  /** Return the source partition, which an executor borrows for its first row. */
  private RekeySource owned(int from) {
    RekeySource source = (RekeySource) sources.get(from);
    if (source == null) {
      source = RekeyExecutors.borrow(run, from);
      sources.set(from, source);
    }
    return source;
  }

  /** Give up a source partition. Everything of it is acknowledged. */
  private RekeySource part(int from) {
    RekeySource source = (RekeySource) sources.getAndSet(from, null);
    if (source == null) {
      throw new IllegalStateException("source partition " + from + " is written elsewhere");
    }
    synchronized (source) {
      // A marker that was being written is written now.
    }
    flush();
    return source;
  }

  private void move(int from, long begin, long reached) {
    RekeySource source = (RekeySource) sources.get(from);
    if (source != null) {
      synchronized (source) {
        if (sources.get(from) != source || source.next != begin) {
          return;
        }
        source.next = reached;
      }
      advance();
    }
  }

  /** Fail if the source partition was given up, or is already further. */
  private void require(RekeySource source, int from, long offset) {
    if (sources.get(from) != source) {
      throw new IllegalStateException("source partition " + from + " is written elsewhere");
    }
    if (offset < source.next) {
      throw new IllegalStateException("offset " + offset + " of partition " + from + " comes after " + source.next);
    }
  }

  private void check() {
    if (failed != null) {
      throw new IllegalStateException("the internal topic cannot be written", failed);
    }
    if (ended) {
      throw new IllegalStateException("the run has ended");
    }
  }

  private void fail(Exception error) {
    if (failed == null) {
      failed = error;
      LockSupport.unpark(markers);
    }
  }

  private void advance() {
    if (!advanced) {
      advanced = true;
      LockSupport.unpark(markers);
    }
  }

  private void writeMarkers() {
    try {
      long reportAt = System.nanoTime();
      while (!ended && failed == null) {
        if (loans == null && System.nanoTime() - reportAt >= 0) {
          reportAt = System.nanoTime() + REPORT_NANOS;
          report();
        }
        if (advanced) {
          advanced = false;
          for (int from = 0; from < sources.length(); from++) {
            writeMarkers(from);
          }
          LockSupport.parkNanos(this, MARKER_NANOS);
        } else if (loans == null) {
          LockSupport.parkNanos(this, REPORT_NANOS);
        } else {
          LockSupport.park(this);
        }
      }
    } catch (Exception e) {
      fail(e);
    }
    if (loans == null && !ended) {
      leave();
    }
  }

  /** End this executor's part of a run that it cannot write. */
  private void leave() {
    try {
      RekeyExecutors.report(run, new HashMap(), failed.toString());
    } catch (IllegalStateException e) {
      // Without a driver there is no run.
    } finally {
      end(run);
    }
  }

  private void writeMarkers(int from) {
    RekeySource source = (RekeySource) sources.get(from);
    if (source == null) {
      return;
    }
    synchronized (source) {
      boolean withinRecord = source.timed >= source.next; // then the clock is not the one before the next record
      for (int to = 0; to < partitions && !withinRecord; to++) {
        if (source.marked[to] < source.next && sources.get(from) == source) {
          send(source, from, to, MARKER_KEY, source.next, 0, 0, System.currentTimeMillis(), NO_ROW);
          source.marked[to] = source.next;
        }
      }
    }
  }

  /** Tell the driver how far this executor is, and move over what the driver has found to be empty. */
  private void report() {
    HashMap progress = new HashMap();
    for (int from = 0; from < sources.length(); from++) {
      RekeySource source = (RekeySource) sources.get(from);
      if (source != null) {
        progress.put(Integer.valueOf(from), source.progress());
      }
    }
    Map skips = RekeyExecutors.report(run, progress, null);
    if (skips == null) {
      end(run);
      return;
    }
    for (Iterator each = skips.entrySet().iterator(); each.hasNext();) {
      Map.Entry skip = (Map.Entry) each.next();
      long[] range = (long[]) skip.getValue();
      move(((Integer) skip.getKey()).intValue(), range[0], range[1]);
    }
  }

  /** The caller holds the monitor of the source, so that sequences are in the order of the sends. */
  private void send(RekeySource source, int from, int to, byte[] key, long offset, int row, int rows, long timestampMs,
      byte[] contribution) {
    int extra = source.clock != null ? SourceClock.SIZE : source.places != null ? 8 : 0;
    ByteBuffer value = ByteBuffer.allocate(HEADER + extra + contribution.length);
    value.put(VERSION).putInt(from).putLong(offset).putShort((short) row).putShort((short) rows);
    value.putLong(run).putLong(source.sequence[to]++).putLong(timestampMs);
    if (source.clock != null) {
      source.clock.put(value);
    }
    if (source.places != null) {
      value.putLong(Math.min(offset, source.reliesFrom[to]));
      source.reliesFrom[to] = RekeySource.NOTHING;
    }
    value.put(contribution);
    // The record's own time is now: brokers refuse times that are far ahead, which a source record may have.
    producer.send(new ProducerRecord(topic, Integer.valueOf(to), key, value.array()), callback);
  }
}
