package io.queryabletopics;

import java.io.Serializable;
import java.nio.ByteBuffer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.StructType;

/**
 * Encode what a record adds to the aggregates of its group: wire/contributions.py has the layout, and docs/protocols.md
 * describes it. Tests compare both with tests/golden/contributions.json.
 *
 * Columns of a row, from the event time on: event time ms long; and for each input first, if it has a filter, whether that is
 * true boolean, and then the value: long (l t D), double (d f), boolean (b and -), binary (s x) or decimal (n). Call `measure`
 * and then `put`, with the same row.
 */
public final class Contribution implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final byte ABSENT = 0, NULL = 1, VALUE = 2;

  private final String types;
  private final String filtered;
  private final StructType schema;
  private final int column;

  private transient byte[] presence;
  private transient long[] numbers; // integers, the bits of doubles, and the scales of decimals
  private transient byte[][] contents;
  private transient long eventMs;

  /**
   * @param types    one character for each input
   * @param filtered for each input 1 if it has a filter, else 0
   * @param schema   of the rows
   * @param column   that of the event time
   */
  public Contribution(String types, String filtered, StructType schema, int column) {
    if (types.length() == 0 || types.length() > 255 || filtered.length() != types.length()) {
      throw new IllegalArgumentException("inputs of the types " + types + " with the filters " + filtered);
    }
    this.types = types;
    this.filtered = filtered;
    this.schema = schema;
    this.column = column;
  }

  /** Read the columns of a row, and return the size of the contribution in bytes. */
  public int measure(InternalRow row) {
    int inputs = types.length();
    if (presence == null) {
      presence = new byte[inputs];
      numbers = new long[inputs];
      contents = new byte[inputs][];
    }
    eventMs = row.getLong(column);
    int size = 1 + inputs + 8;
    int at = column;
    for (int i = 0; i < inputs; i++) {
      char type = types.charAt(i);
      boolean counts = filtered.charAt(i) == '0' || row.getBoolean(++at);
      at++;
      presence[i] = !counts ? ABSENT : row.isNullAt(at) ? NULL : VALUE;
      numbers[i] = 0;
      contents[i] = null;
      size += 1 + width(type);
      if (presence[i] == VALUE) {
        read(i, type, row, at);
        size += contents[i] == null ? 0 : contents[i].length;
      }
    }
    return size;
  }

  /** Append the measured contribution to a buffer in big-endian order. */
  public void put(ByteBuffer buffer) {
    int inputs = types.length();
    buffer.put((byte) inputs);
    for (int i = 0; i < inputs; i++) {
      buffer.put((byte) types.charAt(i));
    }
    buffer.putLong(eventMs);
    for (int i = 0; i < inputs; i++) {
      buffer.put(presence[i]);
      int length = contents[i] == null ? 0 : contents[i].length;
      switch (types.charAt(i)) {
        case '-':
          break;
        case 'b':
          buffer.put((byte) numbers[i]);
          break;
        case 's':
        case 'x':
          buffer.putInt(length);
          break;
        case 'n':
          buffer.put((byte) numbers[i]).putInt(length);
          break;
        default:
          buffer.putLong(numbers[i]);
      }
    }
    for (int i = 0; i < inputs; i++) {
      if (contents[i] != null) {
        buffer.put(contents[i]);
      }
    }
  }

  public byte[] encoded(InternalRow row) {
    ByteBuffer buffer = ByteBuffer.allocate(measure(row));
    put(buffer);
    return buffer.array();
  }

  private void read(int i, char type, InternalRow row, int at) {
    switch (type) {
      case '-':
        break;
      case 'b':
        numbers[i] = row.getBoolean(at) ? 1 : 0;
        break;
      case 'd':
      case 'f':
        numbers[i] = Double.doubleToLongBits(row.getDouble(at));
        break;
      case 's':
      case 'x':
        contents[i] = row.getBinary(at);
        break;
      case 'n':
        DecimalType of = (DecimalType) schema.fields()[at].dataType();
        Decimal decimal = row.getDecimal(at, of.precision(), of.scale());
        numbers[i] = decimal.scale();
        contents[i] = decimal.toJavaBigDecimal().unscaledValue().toByteArray();
        break;
      default:
        numbers[i] = row.getLong(at);
    }
  }

  private static int width(char type) {
    switch (type) {
      case '-':
        return 0;
      case 'b':
        return 1;
      case 's':
      case 'x':
        return 4;
      case 'n':
        return 5;
      case 'l':
      case 't':
      case 'D':
      case 'd':
      case 'f':
        return 8;
      default:
        throw new IllegalArgumentException("an input of the type " + type);
    }
  }
}
