package io.queryabletopics;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.util.Arrays;

/**
 * Take the Protobuf encoding off a record key, a message with one scalar field: what is left has the bytes of that field's key format.
 *
 * Bytes that no serializer writes are refused, as in wire/protobuf_keys.py: a read hashes those that serializers write.
 */
public final class ProtobufKey implements KeyDecoder {
  private static final long serialVersionUID = 1L;
  private static final int VARINT = 0, EIGHT_BYTES = 1, COUNTED = 2, FOUR_BYTES = 5;
  private static final int VARINT_BYTES_MAX = 10;

  private final String type;
  private final int number;
  private final boolean alwaysWritten; // also the default of the type
  private final int id; // -1: keys are bare
  private final int wireType;
  private final int width; // of the key; 0: any

  public ProtobufKey(String type, int number, boolean alwaysWritten, int id) {
    this.type = type;
    this.number = number;
    this.alwaysWritten = alwaysWritten;
    this.id = id;
    boolean text = type.equals("string") || type.equals("bytes");
    this.width = text ? 0 : type.endsWith("32") ? 4 : 8;
    boolean fixed = type.startsWith("sfixed") || type.equals("double");
    this.wireType = text ? COUNTED : !fixed ? VARINT : width == 4 ? FOUR_BYTES : EIGHT_BYTES;
  }

  public byte[] decode(byte[] key) throws Undecodable {
    int at = KeyDecoders.frame(key, id);
    if (id >= 0) {
      if (at == key.length || key[at] != 0) {
        throw new Undecodable("it is not the first message of its schema");
      }
      at++;
    }
    byte[] encoded = Arrays.copyOfRange(key, at, key.length);
    byte[] decoded = content(encoded);
    if (!Arrays.equals(encode(decoded), encoded)) {
      throw new Undecodable("not the bytes that a serializer writes for a message with field " + number + ", " + type);
    }
    String problem = type.equals("string") ? Checks.utf8Problem(decoded) : null;
    if (problem != null) {
      throw new Undecodable(problem);
    }
    return decoded;
  }

  /** Return the key, if these are the bytes that `encode` makes of it. */
  private byte[] content(byte[] encoded) throws Undecodable {
    if (encoded.length == 0) {
      return new byte[width];
    }
    int at = 0;
    long tag = 0;
    for (; at < encoded.length && at < VARINT_BYTES_MAX; at++) {
      tag |= (encoded[at] & 0x7fL) << 7 * at;
      if (encoded[at] >= 0) {
        break;
      }
    }
    if (tag != ((long) number << 3 | wireType)) {
      throw new Undecodable("it does not begin with field " + number + ", " + type);
    }
    int from = Math.min(at + 1, encoded.length);
    if (wireType == EIGHT_BYTES || wireType == FOUR_BYTES) {
      if (encoded.length - from != width) {
        throw new Undecodable((encoded.length - from) + " bytes, but " + type + " has " + width);
      }
      return reversed(Arrays.copyOfRange(encoded, from, encoded.length));
    }
    long bits = 0;
    for (int place = 0; from < encoded.length && place < VARINT_BYTES_MAX; place++) {
      byte each = encoded[from++];
      bits |= (each & 0x7fL) << 7 * place;
      if (each >= 0) {
        break;
      }
    }
    if (wireType == COUNTED) {
      return Arrays.copyOfRange(encoded, from, encoded.length);
    }
    long value = type.startsWith("s") ? bits >>> 1 ^ -(bits & 1) : bits;
    return width == 8 ? ByteBuffer.allocate(8).putLong(value).array() : ByteBuffer.allocate(4).putInt((int) value).array();
  }

  private byte[] encode(byte[] key) {
    if (!alwaysWritten && Arrays.equals(key, new byte[width])) {
      return new byte[0];
    }
    ByteArrayOutputStream made = new ByteArrayOutputStream();
    varint(made, (long) number << 3 | wireType);
    if (wireType == VARINT) {
      long value = width == 8 ? ByteBuffer.wrap(key).getLong() : ByteBuffer.wrap(key).getInt();
      varint(made, type.startsWith("s") ? value << 1 ^ value >> 63 : value);
      return made.toByteArray();
    }
    if (wireType == COUNTED) {
      varint(made, key.length);
    }
    byte[] content = wireType == COUNTED ? key : reversed(key);
    made.write(content, 0, content.length);
    return made.toByteArray();
  }

  private static void varint(ByteArrayOutputStream to, long bits) {
    while ((bits & ~0x7fL) != 0) {
      to.write((int) (bits & 0x7f | 0x80));
      bits >>>= 7;
    }
    to.write((int) bits);
  }

  private static byte[] reversed(byte[] bytes) {
    byte[] made = new byte[bytes.length];
    for (int i = 0; i < made.length; i++) {
      made[i] = bytes[made.length - 1 - i];
    }
    return made;
  }
}
