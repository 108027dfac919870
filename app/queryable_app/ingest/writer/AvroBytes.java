package io.queryabletopics;

import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.avro.io.Decoder;
import org.apache.avro.util.Utf8;

/**
 * Read Avro's binary encoding out of one record, with a bound on everything that the bytes announce.
 *
 * Avro's own decoder allocates the length that it reads, so that a record of six bytes could end the JVM. Here a length is at
 * most what the record still has. Items may take no bytes (null, an empty record), so their number has a bound as well.
 */
final class AvroBytes extends Decoder {
  private static final int EMPTY_ITEMS_MAX = 1000; // beside one for each byte of the record

  private byte[] data = new byte[0];
  private int at;
  private long itemsLeft;

  void reset(byte[] record, int from) {
    data = record;
    at = from;
    itemsLeft = (long) record.length + EMPTY_ITEMS_MAX;
  }

  /** Check that the whole record has been read. */
  void end() throws Undecodable {
    if (at != data.length) {
      throw new Undecodable("not Avro of this schema: " + (data.length - at) + " bytes are left over");
    }
  }

  public void readNull() {}

  public boolean readBoolean() throws IOException {
    need(1);
    byte value = data[at++];
    if (value != 0 && value != 1) {
      throw new Undecodable("not Avro of this schema: no boolean at byte " + (at - 1));
    }
    return value == 1;
  }

  public int readInt() throws IOException {
    long value = readLong();
    if (value != (int) value) {
      throw new Undecodable("not Avro of this schema: no int at byte " + at);
    }
    return (int) value;
  }

  public long readLong() throws IOException {
    long bits = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      need(1);
      long next = data[at++];
      bits |= (next & 0x7f) << shift;
      if (next >= 0) {
        return (bits >>> 1) ^ -(bits & 1);
      }
    }
    throw new Undecodable("not Avro of this schema: no number at byte " + at);
  }

  public float readFloat() throws IOException {
    need(4);
    int bits = data[at] & 0xff | (data[at + 1] & 0xff) << 8 | (data[at + 2] & 0xff) << 16 | (data[at + 3] & 0xff) << 24;
    at += 4;
    return Float.intBitsToFloat(bits);
  }

  public double readDouble() throws IOException {
    need(8);
    long bits = 0;
    for (int i = 7; i >= 0; i--) {
      bits = bits << 8 | data[at + i] & 0xff;
    }
    at += 8;
    return Double.longBitsToDouble(bits);
  }

  public Utf8 readString(Utf8 old) throws IOException {
    byte[] text = take(length());
    String problem = Checks.utf8Problem(text);
    if (problem != null) {
      throw new Undecodable("a string is " + problem);
    }
    return new Utf8(text);
  }

  public String readString() throws IOException {
    return readString(null).toString();
  }

  public void skipString() throws IOException {
    skipFixed(length());
  }

  public ByteBuffer readBytes(ByteBuffer old) throws IOException {
    return ByteBuffer.wrap(take(length()));
  }

  public void skipBytes() throws IOException {
    skipFixed(length());
  }

  public void readFixed(byte[] bytes, int start, int length) throws IOException {
    need(length);
    System.arraycopy(data, at, bytes, start, length);
    at += length;
  }

  public void skipFixed(int length) throws IOException {
    need(length);
    at += length;
  }

  public int readEnum() throws IOException {
    return readInt();
  }

  public long readArrayStart() throws IOException {
    return items();
  }

  public long arrayNext() throws IOException {
    return items();
  }

  public long skipArray() throws IOException {
    return skipBlocks();
  }

  public long readMapStart() throws IOException {
    return items();
  }

  public long mapNext() throws IOException {
    return items();
  }

  public long skipMap() throws IOException {
    return skipBlocks();
  }

  public int readIndex() throws IOException {
    return readInt();
  }

  /** Return the items of the next block; 0 at the end. A negative number says that the block's length in bytes follows. */
  private long items() throws IOException {
    long count = readLong();
    if (count < 0) {
      readLong();
      count = -count;
    }
    itemsLeft -= count;
    if (count < 0 || itemsLeft < 0) {
      throw new Undecodable("not Avro of this schema: more items than bytes at byte " + at);
    }
    return count;
  }

  /** Skip the blocks that state their length. Return the items of the first one that does not, or 0 at the end. */
  private long skipBlocks() throws IOException {
    while (true) {
      long count = readLong();
      if (count >= 0) {
        itemsLeft -= count;
        if (itemsLeft < 0) {
          throw new Undecodable("not Avro of this schema: more items than bytes at byte " + at);
        }
        return count;
      }
      skipFixed(length());
    }
  }

  private int length() throws IOException {
    long length = readLong();
    if (length < 0 || length > data.length - at) {
      throw new Undecodable("not Avro of this schema: a length of " + length + " at byte " + at);
    }
    return (int) length;
  }

  private byte[] take(int length) {
    byte[] taken = new byte[length];
    System.arraycopy(data, at, taken, 0, length);
    at += length;
    return taken;
  }

  private void need(int bytes) throws Undecodable {
    if (data.length - at < bytes) {
      throw new Undecodable("not Avro of this schema: it ends at byte " + data.length + " and should go on");
    }
  }
}
