package io.queryabletopics;

import java.nio.ByteBuffer;
import java.util.Arrays;

/**
 * Take the Avro encoding off a record key: what is left has the bytes of the key format with the same name.
 *
 * A number that is written longer than it needs be is refused, as in wire/avro_keys.py: a read hashes the shortest form.
 */
public final class AvroKey implements KeyDecoder {
  private static final long serialVersionUID = 1L;

  private final String type;
  private final int id; // -1: keys are bare

  public AvroKey(String type, int id) {
    this.type = type;
    this.id = id;
  }

  public byte[] decode(byte[] key) throws Undecodable {
    int at = KeyDecoders.frame(key, id);
    if (type.equals("double")) {
      if (key.length - at != 8) {
        throw new Undecodable((key.length - at) + " bytes, but an Avro double has 8");
      }
      byte[] reversed = new byte[8];
      for (int i = 0; i < 8; i++) {
        reversed[i] = key[at + 7 - i];
      }
      return reversed;
    }
    int length = 1;
    while (at + length <= key.length && key[at + length - 1] < 0) {
      length++;
    }
    if (at + length > key.length) {
      throw new Undecodable("no Avro " + type + ": it ends too early");
    }
    long number = number(key, at, length);
    at += length;
    if (type.equals("string") || type.equals("bytes")) {
      if (number != key.length - at) {
        throw new Undecodable("no Avro " + type + ": it announces " + number + " bytes and has " + (key.length - at));
      }
      byte[] content = Arrays.copyOfRange(key, at, key.length);
      String problem = type.equals("string") ? Checks.utf8Problem(content) : null;
      if (problem != null) {
        throw new Undecodable(problem);
      }
      return content;
    }
    if (at != key.length) {
      throw new Undecodable((key.length - at) + " bytes are left over");
    }
    if (type.equals("long")) {
      return ByteBuffer.allocate(8).putLong(number).array();
    }
    if (number != (int) number) {
      throw new Undecodable("no Avro int: it is " + number);
    }
    return ByteBuffer.allocate(4).putInt((int) number).array();
  }

  private long number(byte[] key, int from, int length) throws Undecodable {
    int last = key[from + length - 1];
    if (length > 10 || length == 10 && last > 1) {
      throw new Undecodable("no Avro " + type + ": it has a number of more than 64 bits");
    }
    if (length > 1 && last == 0) {
      throw new Undecodable("no Avro " + type + " that a producer writes: it has a number with needless bytes");
    }
    long bits = 0;
    for (int i = length - 1; i >= 0; i--) {
      bits = bits << 7 | key[from + i] & 0x7f;
    }
    return bits >>> 1 ^ -(bits & 1);
  }
}
