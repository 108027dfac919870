package io.queryabletopics;

import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.locks.LockSupport;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Send the rows of one Spark task to serve's row socket: those of a Kafka partition, or of several, each in offset order.
 *
 * Strategy: a buffer collects rows into the next slice; docs/protocols.md has the layout of slices
 * and wire/disk_format.py that of rows. The writer does what is cheap in Java and expensive in Python: decoding checks,
 * key order, row headers, hashes. A row is sent at once, unless rows arrive fast: then those of at most a millisecond are sent
 * together, after the first few. The task that reads for others (SharedConsumer) sends the rows of one response of the broker
 * together. Any failure ends the task and the query, and ingest's supervisor starts a new one at the
 * store's position.
 *
 * Columns: partition int, offset long, timestamp ms long, key binary, value binary; and after the user's SQL also dropped
 * boolean and problem string (null: none). An aggregate view has those seven, and then the columns of Contribution; its value
 * is null unless there is a problem. The language is what Janino compiles: no generics, no lambdas.
 */
public final class RowWriter extends PlainRows {
  private static final long serialVersionUID = 1L;

  private static final byte SLICE = 1;
  private static final byte ROW = 0, BAD = 1, DROPPED = 2, NULL_KEY = 3;
  private static final byte TOMBSTONE = 1;

  private static final int SLICE_HEADER = 4 + 1 + 4 + 3 * 8 + 7 * 4; // with the frame's length and type
  private static final int ROW_PREFIX = 4 + 4 + 1 + 8;
  private static final int ROW_HEADER = 1 + 8 + 8 + 8; // disk_format.ROW_HEADER
  private static final int ROWS_MAX = 1000;
  private static final int BYTES_MAX = 256 * 1024;
  private static final long SEND_EVERY_NANOS = 1000000L;
  /** How many slices of one row the partitions send together in that time; with more partitions than this, each sends one. */
  private static final int SLICES = 8;
  /** After a rest three rows are sent at once: of rows that come by chance, few follow one another so closely. */
  private static final int SAVED_ROWS = 2;

  private static final ThreadLocal OF_THREAD = new ThreadLocal();

  /** A file for `bench/freshness_doors.py`: when each slice began and was sent. */
  private static final String DOORS = System.getProperty("io.queryabletopics.doors");

  private final String socketPath;
  private final long generation;
  private final int partitions;
  private final long rowNanos; // each row of a slice delays the next slice for so long, all together at most SEND_EVERY_NANOS
  private final String keyFormat;
  private final String valueFormat;
  private final long ttlMs;
  private final boolean decoded;
  private final Contribution contribution; // null: rows hold values
  private final ValueDecoder decoder; // null: values are stored as they are
  private final KeyDecoder keyDecoder; // null: keys have no encoding to take off
  private final TimeField timeField; // of a view of entries, or null: rows have the time of their entry as their expiry

  private transient RowConnection connection;
  private transient ByteBuffer buffer;
  private transient Thread sender;
  private transient long nextSendNanos;
  private transient long firstRowNanos;
  private transient PrintStream doors;
  private transient volatile boolean waiting; // the buffer holds rows that the sender must send
  private transient volatile boolean closed;
  private transient volatile IOException failed;
  private transient boolean flushes;
  private transient long heldSinceNanos; // since when the buffer has rows

  // The next slice. The buffer may hold complete ones before it.
  private transient boolean started;
  private transient int begin;
  private transient int partition;
  private transient long firstOffset, lastOffset, lastTimestampMs;
  private transient int rows, nullKeys, bad, dropped, notMurmur2, notCrc32, notFnv1a;

  /**
   * @param partitions among which reads look for keys, for the partitioner's check
   * @param ttlMs      how long a row lives after its record's timestamp; 0: for ever
   * @param decoded    the rows come out of the user's SQL, which has checked them
   * @param contribution encodes the rows of an aggregate view, which are also decoded; null: rows hold values
   * @param decoder    makes the JSON that is stored out of values with a schema, unless `decoded`; null: values have none
   * @param keyDecoder takes the encoding off Avro and Protobuf keys, which are then of `keyFormat`; null: there is none
   * @param timeField  finds the time of an entry in the JSON that is stored; null: the view has no entries
   */
  public RowWriter(String socketPath, long generation, int partitions, String keyFormat, String valueFormat, long ttlMs,
      boolean decoded, Contribution contribution, ValueDecoder decoder, KeyDecoder keyDecoder, TimeField timeField) {
    this.socketPath = socketPath;
    this.generation = generation;
    this.partitions = partitions;
    this.rowNanos = SEND_EVERY_NANOS * Math.min(partitions, SLICES) / SLICES;
    this.keyFormat = keyFormat;
    this.valueFormat = valueFormat;
    this.ttlMs = ttlMs;
    this.decoded = decoded;
    this.contribution = contribution;
    this.decoder = decoder;
    this.keyDecoder = keyDecoder;
    this.timeField = timeField;
  }

  public boolean open(long partitionId, long epochId) {
    int task = (int) partitionId;
    closed = false;
    waiting = false;
    failed = null;
    flushes = false;
    nextSendNanos = System.nanoTime() - SAVED_ROWS * rowNanos;
    buffer = RowConnection.allocate(BYTES_MAX);
    clear();
    try {
      connection = new RowConnection(socketPath, generation, task, epochId);
      doors = DOORS == null ? null : new PrintStream(new FileOutputStream(DOORS + "-" + task, true), false);
    } catch (IOException e) {
      throw new UncheckedIOException("serve cannot be reached at " + socketPath, e);
    }
    sender = new Thread(new Runnable() {
      public void run() {
        sendWhatWaits();
      }
    }, "row-sender-" + task);
    sender.setDaemon(true);
    sender.start();
    OF_THREAD.set(this);
    return true;
  }

  /** Return the writer of the task that this thread runs, or null. */
  static RowWriter ofThread() {
    return (RowWriter) OF_THREAD.get();
  }

  /** Say that `flush` follows as soon as no more rows are at hand: until then, or for a millisecond, rows wait for one another. */
  public void expectFlushes(boolean on) {
    flushes = on;
  }

  public void flush() throws IOException {
    synchronized (this) {
      send();
    }
  }

  /** Send all rows, and return when serve has applied them. */
  public void settle() throws IOException {
    synchronized (this) {
      if (failed != null) {
        throw failed;
      }
      send();
      connection.settle();
    }
  }

  void take(InternalRow row) {
    if (failed != null) {
      throw new UncheckedIOException(failed);
    }
    boolean wake = false;
    try {
      synchronized (this) {
        add(row);
        long sendNanos = flushes ? heldSinceNanos + SEND_EVERY_NANOS : nextSendNanos;
        if (rows >= ROWS_MAX || System.nanoTime() - sendNanos >= 0) {
          send();
        } else if (!waiting && !flushes) {
          waiting = true;
          wake = true;
        }
      }
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    if (wake) {
      LockSupport.unpark(sender);
    }
  }

  public void close(Throwable error) {
    OF_THREAD.remove();
    try {
      synchronized (this) {
        closed = true;
        if (connection != null && error == null) {
          settle();
        }
      }
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    } finally {
      LockSupport.unpark(sender);
      if (doors != null) {
        doors.close();
      }
      if (connection != null) {
        connection.close();
      }
    }
  }

  private void sendWhatWaits() {
    while (!closed) {
      if (!waiting) {
        LockSupport.park(this);
        continue;
      }
      LockSupport.parkNanos(this, nextSendNanos - System.nanoTime());
      try {
        synchronized (this) {
          if (waiting && !closed) {
            send();
          }
        }
      } catch (IOException e) {
        failed = e; // the task fails with its next row or at its end
        return;
      }
    }
  }

  private void add(InternalRow row) throws IOException {
    long offset = row.getLong(1);
    long timestampMs = row.getLong(2);
    if (row.isNullAt(3)) {
      makeRoom(0);
      cover(row.getInt(0), offset, timestampMs);
      buffer.putInt(0).putInt(0).put(NULL_KEY).putLong(offset);
      nullKeys++;
      rows++;
      return;
    }
    byte[] recordKey = row.getBinary(3);
    byte[] key = recordKey;
    byte[] given = row.isNullAt(4) ? null : row.getBinary(4);
    byte[] value = given;
    long expiry = 0;
    String problem = decoded && !row.isNullAt(6) ? row.getUTF8String(6).toString() : null;
    if (keyDecoder != null && problem == null) {
      try {
        key = keyDecoder.decode(recordKey);
      } catch (Undecodable e) {
        problem = "key: " + e.getMessage();
      }
    }
    if (problem == null && !decoded) {
      problem = Checks.problem(keyFormat, key, valueFormat, value);
    }
    if (problem == null && value != null) {
      try {
        value = decoder != null && !decoded ? decoder.decode(value) : value;
        expiry = timeField != null ? timeField.of(value) ^ Long.MIN_VALUE : ttlMs == 0 ? 0 : expiry(timestampMs);
      } catch (Undecodable e) {
        problem = "value: " + e.getMessage();
        value = given;
      }
    }
    boolean isDropped = decoded && row.getBoolean(5);
    if (problem == null) {
      boolean empty = (contribution != null || timeField != null) && isDropped; // it adds nothing to its key
      int stored = empty ? 0 : ROW_HEADER + contentLength(row, value);
      makeRoom(key.length + stored);
      cover(row.getInt(0), offset, timestampMs);
      buffer.putInt(key.length).putInt(stored).put(isDropped ? DROPPED : ROW).putLong(offset);
      putOrdered(key);
      if (!empty) {
        boolean tombstone = contribution == null && value == null;
        buffer.order(ByteOrder.BIG_ENDIAN);
        buffer.put(tombstone ? TOMBSTONE : (byte) 0).putLong(offset).putLong(timestampMs);
        buffer.putLong(expiry);
        if (contribution != null) {
          contribution.put(buffer);
        } else if (value != null) {
          buffer.put(value);
        }
        buffer.order(ByteOrder.LITTLE_ENDIAN);
      }
      if (isDropped) {
        dropped++;
      }
    } else {
      byte[] reason = problem.getBytes(StandardCharsets.UTF_8);
      int stored = 4 + reason.length + (value == null ? 0 : value.length);
      makeRoom(recordKey.length + stored);
      cover(row.getInt(0), offset, timestampMs);
      buffer.putInt(recordKey.length).putInt(stored).put(BAD).putLong(offset).put(recordKey);
      buffer.putInt(reason.length).put(reason);
      if (value != null) {
        buffer.put(value);
      }
      bad++;
    }
    rows++;
    notMurmur2 += Partitioners.murmur2(recordKey, partitions) == partition ? 0 : 1;
    notCrc32 += Partitioners.crc32(recordKey, partitions) == partition ? 0 : 1;
    notFnv1a += Partitioners.fnv1a(recordKey, partitions) == partition ? 0 : 1;
  }

  private int contentLength(InternalRow row, byte[] value) {
    return contribution != null ? contribution.measure(row) : value == null ? 0 : value.length;
  }

  /** An expiry of 0 means none, so a row from before 1970 expires at the first millisecond after it. */
  private long expiry(long timestampMs) {
    return Math.max(1, timestampMs + ttlMs);
  }

  private void cover(int of, long offset, long timestampMs) {
    if (started && of != partition) {
      complete();
      beginSlice();
    }
    if (!started) {
      started = true;
      heldSinceNanos = begin == 0 ? System.nanoTime() : heldSinceNanos;
      firstRowNanos = DOORS == null ? 0 : System.nanoTime();
      partition = of;
      firstOffset = offset;
    }
    lastOffset = offset;
    lastTimestampMs = timestampMs;
  }

  private void makeRoom(int bytes) throws IOException {
    int needed = SLICE_HEADER + ROW_PREFIX + bytes; // the row may begin a slice
    if (buffer.remaining() < needed && started) {
      send();
    }
    if (buffer.remaining() < needed) { // a record larger than a slice gets a buffer of its own
      ByteBuffer larger = RowConnection.allocate(buffer.position() + needed);
      buffer.flip();
      larger.put(buffer);
      buffer = larger;
    }
  }

  /** Numbers are stored so that bytes sort as values do: disk_format.to_disk_key. */
  private void putOrdered(byte[] key) {
    if (keyFormat.equals("int") || keyFormat.equals("long") || keyFormat.equals("double")) {
      boolean flipAll = keyFormat.equals("double") && key[0] < 0;
      buffer.put((byte) (key[0] ^ (flipAll ? 0xff : 0x80)));
      for (int i = 1; i < key.length; i++) {
        buffer.put((byte) (key[i] ^ (flipAll ? 0xff : 0)));
      }
    } else {
      buffer.put(key);
    }
  }

  private void send() throws IOException { // the caller holds the monitor
    waiting = false;
    if (!started) {
      return;
    }
    complete();
    connection.write(buffer);
    if (buffer.capacity() > BYTES_MAX) {
      buffer = RowConnection.allocate(BYTES_MAX);
    }
    long now = System.nanoTime(); // slices that are full are sent sooner, and delay no later row
    long pause = Math.min(SEND_EVERY_NANOS, rows * rowNanos);
    nextSendNanos = pause + Math.min(now, Math.max(now - SAVED_ROWS * rowNanos, nextSendNanos));
    clear();
  }

  /** Write the header of the slice that ends here. */
  private void complete() {
    int at = begin;
    buffer.putInt(at, buffer.position() - at - 4).put(at + 4, SLICE).putInt(at + 5, partition);
    buffer.putLong(at + 9, firstOffset).putLong(at + 17, lastOffset).putLong(at + 25, lastTimestampMs);
    buffer.putInt(at + 33, rows).putInt(at + 37, nullKeys).putInt(at + 41, bad).putInt(at + 45, dropped);
    buffer.putInt(at + 49, notMurmur2).putInt(at + 53, notCrc32).putInt(at + 57, notFnv1a);
    if (doors != null) {
      doors.println(partition + " " + firstOffset + " " + lastOffset + " " + firstRowNanos + " " + System.nanoTime());
    }
  }

  private void clear() {
    buffer.clear();
    beginSlice();
  }

  private void beginSlice() {
    begin = buffer.position();
    buffer.position(begin + SLICE_HEADER);
    started = false;
    rows = nullKeys = bad = dropped = notMurmur2 = notCrc32 = notFnv1a = 0;
  }
}
