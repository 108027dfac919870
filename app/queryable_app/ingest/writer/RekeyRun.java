package io.queryabletopics;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReferenceArray;

/**
 * Write what one run of the rekey job has to say to the internal topic: rows in envelopes, and markers of its progress.
 *
 * Strategy: a run lives from the start of the query to its end, over all its batches. It numbers the envelopes from each source
 * partition to each internal partition, so a lost one shows. The first failed send (`RekeyEnvelopes`) ends the run: nothing is
 * written afterwards, and the job starts another one.
 *
 * The driver begins the run, and owns all its source partitions. The tasks of its own JVM write them there. An executor borrows
 * a source partition for a task, with its numbers, and gives it back when everything is acknowledged. So a source partition has
 * one writer at a time, and its numbers go on wherever Spark runs the next task. What an executor takes with it when it dies is
 * never lent again: the run ends.
 *
 * In a view with windows every envelope has the clock of its source partition. The first row of a record moves it, before the row
 * is written. A start within a record brings a clock that the record has moved already.
 *
 * A thread writes markers when the run has advanced (`RekeyMarkers`). The language is what Janino compiles.
 */
public final class RekeyRun {
  private static final byte[] MARKER_KEY = new byte[8];
  private static final byte[] NO_ROW = new byte[0];

  private final long run;
  private final String topic;
  private final int partitions;
  private final Map settings;
  private final RekeyEnvelopes envelopes;
  private final AtomicReferenceArray sources; // RekeySource, or null where another JVM is the owner
  private final AtomicReferenceArray givenBack; // in an executor: RekeySource as it gave it back last, or null
  private final RekeyLoans loans; // to executors; null in an executor
  private final AtomicInteger joined = new AtomicInteger(); // executors in which a task of this run has begun
  private final RekeyMarkers markers;
  volatile String lastBad; // the last record that could not be decoded, and why; null: none
  private volatile Exception failed;
  private volatile boolean ended;

  /** @param lends whether this is the driver's part of the run, which lends source partitions to executors */
  RekeyRun(long run, String topic, int partitions, Map settings, int sources, boolean lends) {
    this.run = run;
    this.topic = topic;
    this.partitions = partitions;
    this.settings = settings;
    envelopes = new RekeyEnvelopes(run, topic, settings, this);
    this.sources = new AtomicReferenceArray(sources);
    givenBack = new AtomicReferenceArray(sources);
    loans = lends ? new RekeyLoans(sources) : null;
    markers = new RekeyMarkers(this, !lends);
  }

  void begin(byte[] sourceId, long[] covered, long[] starts, long aheadMs, long[] clocks, long[] trusted) {
    for (int from = 0; from < covered.length; from++) {
      KeyPlaces places = trusted == null ? null : new KeyPlaces(KeyPlaces.shareOfHeap(covered.length), trusted[from]);
      RekeySource source = new RekeySource(partitions, covered[from], starts[from], places);
      int row = (int) clocks[4 * from];
      if (aheadMs > 0) {
        source.clock = new SourceClock(clocks[4 * from + 1], (int) clocks[4 * from + 2], clocks[4 * from + 3], aheadMs);
        source.timed = row > 0 ? covered[from] : -1;
      }
      for (int to = 0; to < partitions; to++) {
        envelopes.send(source, from, to, MARKER_KEY, covered[from], row, 0, System.currentTimeMillis(), sourceId);
      }
      sources.set(from, source);
    }
    markers.advance();
  }

  /** Start the thread that writes markers. */
  void start() {
    markers.start();
  }

  /** Write a row: what it adds to its group. */
  void row(int from, long offset, int row, int rows, long timestampMs, long eventMs, byte[] key, byte[] contribution) {
    check();
    RekeySource source = owned(from);
    synchronized (source) {
      require(source, from, offset);
      source.moveClock(offset, eventMs);
      int to = Partitioners.murmur2(key, partitions);
      envelopes.send(source, from, to, key, offset, row, rows, timestampMs, contribution);
      source.rows++;
      if (row + 1 == rows) {
        source.next = offset + 1;
        source.marked[to] = offset + 1;
      }
    }
    markers.advance();
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
        envelopes.send(source, from, to, key, offset, 0, 1, timestampMs, KeyedContent.row(recordKey, value));
        source.rows++;
        source.marked[to] = offset + 1;
      } else {
        count(source, why);
      }
      source.next = offset + 1;
    }
    markers.advance();
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
      envelopes.send(source, from, other, MARKER_KEY, offset, 0, 1, timestampMs, left);
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

  /** Note a record that cannot be decoded, and why. */
  void bad(int from, long offset, int row, int rows, String why) {
    RekeySource source = owned(from);
    synchronized (source) {
      none(from, offset, row, rows, BAD);
      source.lastBad = "offset " + offset + " of partition " + from + ": " + why;
      lastBad = source.lastBad;
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
    markers.advance();
  }

  private static void count(RekeySource source, int why) {
    source.nullKeys += why == NULL_KEY ? 1 : 0;
    source.bad += why == BAD ? 1 : 0;
    source.dropped += why == DROPPED ? 1 : 0;
  }

  /** Return when everything so far is written, or fail. */
  void flush() {
    envelopes.flush();
    check();
  }

  /** Give the source partition of a finished task back to the driver, if this is an executor. */
  void finish(int from) {
    if (loans == null) {
      RekeySource source = part(from);
      RekeyExecutors.giveBack(run, from, source);
      givenBack.set(from, source);
    }
  }

  /** Return in how many executors a task of the run has begun. */
  int joined() {
    return joined.get();
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
    lastBad = source.lastBad == null ? lastBad : source.lastBad;
    markers.advance();
  }

  /** Note the progress of an executor, and why it cannot write, or null. Return the skips of its source partitions. */
  Map note(Map progress, String failure) {
    if (failure != null) {
      fail(new IllegalStateException(failure));
    }
    return loans.note(progress);
  }

  /** Return why the run has ended by itself, or null. */
  String failure() {
    try {
      loans.check();
    } catch (IllegalStateException e) {
      fail(e);
    }
    Exception why = failed;
    return why == null ? null : why.toString();
  }

  /** Return the number of source partitions. */
  int sources() {
    return sources.length();
  }

  /** Move over source offsets without a record, here or in the executor that has borrowed the source partition. */
  void skip(int from, long begin, long reached) {
    if (!loans.skip(from, begin, reached)) {
      move(from, begin, reached);
    }
  }

  /** End this JVM's part of the run. What is not acknowledged yet may be lost. */
  void end() {
    ended = true;
    markers.wake();
    envelopes.close();
  }

  /** Return the counts of a source partition, and then its next offset, wherever it is written. */
  long[] progress(int from) {
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
      source.recall((RekeySource) givenBack.getAndSet(from, null));
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
    source.handOver();
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
      markers.advance();
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

  /** End the run. Nothing is written afterwards. */
  void fail(Exception error) {
    if (failed == null) {
      failed = error;
      markers.wake();
    }
  }

  /** Return whether this JVM's part of the run has neither ended nor failed. */
  boolean goesOn() {
    return !ended && failed == null;
  }

  /** Write the markers of all source partitions that have advanced since the last ones. */
  void writeMarkers() {
    for (int from = 0; from < sources.length(); from++) {
      writeMarkers(from);
    }
  }

  /** End this executor's part of a run that it cannot write. */
  void leave() {
    if (ended) {
      return;
    }
    try {
      RekeyExecutors.report(run, new HashMap(), failed.toString());
    } catch (IllegalStateException e) {
      // Without a driver there is no run.
    } finally {
      RekeyRuns.end(run);
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
          envelopes.send(source, from, to, MARKER_KEY, source.next, 0, 0, System.currentTimeMillis(), NO_ROW);
          source.marked[to] = source.next;
        }
      }
    }
  }

  /** Tell the driver how far this executor is, and move over what the driver has found to be empty. */
  void report() {
    HashMap progress = new HashMap();
    for (int from = 0; from < sources.length(); from++) {
      RekeySource source = (RekeySource) sources.get(from);
      if (source != null) {
        progress.put(Integer.valueOf(from), source.progress());
      }
    }
    Map skips = RekeyExecutors.report(run, progress, null);
    if (skips == null) {
      RekeyRuns.end(run);
      return;
    }
    for (Iterator each = skips.entrySet().iterator(); each.hasNext();) {
      Map.Entry skip = (Map.Entry) each.next();
      long[] range = (long[]) skip.getValue();
      move(((Integer) skip.getKey()).intValue(), range[0], range[1]);
    }
  }
}
