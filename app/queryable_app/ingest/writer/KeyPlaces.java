package io.queryabletopics;

import java.io.Serializable;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Remember where a run has written the newest row of each key of one source partition, within a bound of memory.
 *
 * It saves messages and decides no answer: what it says is relied on only where a replica proves that it has followed this run
 * alone since then (policy/source_positions.py). The language is what Janino compiles.
 */
public final class KeyPlaces implements Serializable {
  private static final long serialVersionUID = 1L;
  static final int NOWHERE = -1;
  private static final int ENTRY_BYTES = 128; // of the map's entry, the key's object and array, and the place

  private final LinkedHashMap places = new LinkedHashMap(16, 0.75f, true); // Key → Place, the least recently used first
  private final long bytesMax;
  private final long trusted;
  private boolean complete;
  private long bytes;

  /** Where the newest row of a key is, and the source offset of its record. */
  public static final class Place {
    public final int partition;
    public final long offset;

    private Place(int partition, long offset) {
      this.partition = partition;
      this.offset = offset;
    }
  }

  private static final class Key {
    private final byte[] bytes;
    private final int hash;

    private Key(byte[] bytes) {
      this.bytes = bytes;
      this.hash = Arrays.hashCode(bytes);
    }

    public boolean equals(Object other) {
      return other instanceof Key && Arrays.equals(bytes, ((Key) other).bytes);
    }

    public int hashCode() {
      return hash;
    }
  }

  /** @param trusted the source offset from which replicas probably follow this run alone; 0: no replica has anything yet */
  public KeyPlaces(long bytesMax, long trusted) {
    this(bytesMax, trusted, trusted == 0);
  }

  private KeyPlaces(long bytesMax, long trusted, boolean complete) {
    this.bytesMax = bytesMax;
    this.trusted = trusted;
    this.complete = complete;
  }

  /** Return the bytes for one source partition: an eighth of the heap for all of them. */
  static long shareOfHeap(int sources) {
    return Runtime.getRuntime().maxMemory() / 8 / sources;
  }

  /**
   * Another owner of the source partition begins with nothing, since the places are too many for a message. An executor that is
   * the next owner again has its own (`RekeySource.recall`). Not private, since Janino makes private methods static, and then
   * Java does not find it.
   */
  Object writeReplace() {
    return new KeyPlaces(bytesMax, trusted, complete && places.isEmpty());
  }

  /** Return where a key's newest row is, or null if that is not known. A key that no run has written is nowhere since offset 0. */
  public Place of(byte[] key) {
    Place found = (Place) places.get(new Key(key));
    return found == null && complete ? new Place(NOWHERE, 0) : found;
  }

  public void put(byte[] key, int partition, long offset) {
    if (offset < trusted) {
      return; // another run may have written this record to some replicas
    }
    if (places.put(new Key(key), new Place(partition, offset)) == null) {
      bytes += ENTRY_BYTES + key.length;
    }
    while (bytes > bytesMax) {
      Iterator oldest = places.entrySet().iterator();
      bytes -= ENTRY_BYTES + ((Key) ((Map.Entry) oldest.next()).getKey()).bytes.length;
      oldest.remove();
      complete = false;
    }
  }
}
