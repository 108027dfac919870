package io.queryabletopics;

import java.util.zip.CRC32;

/** Compute the partition of a key as producers do, like wire/partitioners.py. */
public final class Partitioners {
  private Partitioners() {}

  /** The default of Java's clients. */
  public static int murmur2(byte[] key, int partitions) {
    int length = key.length;
    int m = 0x5bd1e995;
    int h = 0x9747b28c ^ length;
    int words = length / 4;
    for (int i = 0; i < words; i++) {
      int at = i * 4;
      int k = (key[at] & 0xff) | (key[at + 1] & 0xff) << 8 | (key[at + 2] & 0xff) << 16 | (key[at + 3] & 0xff) << 24;
      k *= m;
      k ^= k >>> 24;
      k *= m;
      h *= m;
      h ^= k;
    }
    int tail = words * 4;
    int left = length - tail;
    if (left >= 3) {
      h ^= (key[tail + 2] & 0xff) << 16;
    }
    if (left >= 2) {
      h ^= (key[tail + 1] & 0xff) << 8;
    }
    if (left >= 1) {
      h ^= key[tail] & 0xff;
      h *= m;
    }
    h ^= h >>> 13;
    h *= m;
    h ^= h >>> 15;
    return (h & 0x7fffffff) % partitions;
  }

  /** The partitioner `consistent` of librdkafka. */
  public static int crc32(byte[] key, int partitions) {
    CRC32 crc = new CRC32();
    crc.update(key, 0, key.length);
    return (int) (crc.getValue() % partitions);
  }

  /** The partitioner of Sarama, and `fnv1a` of librdkafka: the absolute value of the hash as a signed number. */
  public static int fnv1a(byte[] key, int partitions) {
    int h = 0x811c9dc5;
    for (int i = 0; i < key.length; i++) {
      h ^= key[i] & 0xff;
      h *= 0x01000193;
    }
    if (h < 0) {
      h = -h;
    }
    return (int) ((h & 0xffffffffL) % partitions);
  }
}
