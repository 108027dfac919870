package io.queryabletopics;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.api.java.UDF2;

/** Offer SQL functions below the user's SELECT: the problem of a record, numbers from Kafka's bytes, and JSON. */
public final class Decoding {
  private Decoding() {}

  /** Return the problem of (key, value), or null. */
  public static final class Problem implements UDF2 {
    private static final long serialVersionUID = 1L;
    private final String keyFormat;
    private final String valueFormat;

    public Problem(String keyFormat, String valueFormat) {
      this.keyFormat = keyFormat;
      this.valueFormat = valueFormat;
    }

    public Object call(Object key, Object value) {
      return key == null ? null : Checks.problem(keyFormat, (byte[]) key, valueFormat, (byte[]) value);
    }
  }

  /** Return an Avro or Protobuf key without its encoding; null for one that cannot be decoded. */
  public static final class KeyBytes implements UDF1 {
    private static final long serialVersionUID = 1L;
    private final KeyDecoder decoder;

    public KeyBytes(String encoding) {
      this.decoder = KeyDecoders.of(encoding);
    }

    public Object call(Object key) {
      try {
        return key == null ? null : decoder.decode((byte[]) key);
      } catch (Undecodable e) {
        return null;
      }
    }
  }

  /** Return the problem of an Avro or Protobuf key, or null. */
  public static final class KeyProblem implements UDF1 {
    private static final long serialVersionUID = 1L;
    private final KeyDecoder decoder;

    public KeyProblem(String encoding) {
      this.decoder = KeyDecoders.of(encoding);
    }

    public Object call(Object key) {
      try {
        if (key != null) {
          decoder.decode((byte[]) key);
        }
        return null;
      } catch (Undecodable e) {
        return "key: " + e.getMessage();
      }
    }
  }

  /** Return the problem of a value's time, in a view of entries, or null. */
  public static final class TimeProblem implements UDF1 {
    private static final long serialVersionUID = 1L;
    private final TimeField field;

    public TimeProblem(String field) {
      this.field = new TimeField(field);
    }

    public Object call(Object json) {
      try {
        return json == null ? null : field.problem((byte[]) json);
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
  }

  /** Decode the bytes of Kafka's IntegerSerializer, LongSerializer or DoubleSerializer. Return null for another width. */
  public static final class Number implements UDF1 {
    private static final long serialVersionUID = 1L;
    private final String format;

    public Number(String format) {
      this.format = format;
    }

    public Object call(Object data) {
      byte[] bytes = (byte[]) data;
      if (bytes == null || bytes.length != (format.equals("int") ? 4 : 8)) {
        return null;
      }
      ByteBuffer number = ByteBuffer.wrap(bytes);
      if (format.equals("int")) {
        return Integer.valueOf(number.getInt());
      }
      return format.equals("long") ? (Object) Long.valueOf(number.getLong()) : (Object) Double.valueOf(number.getDouble());
    }
  }

  /** Return the JSON of a value that has a schema, and null, or null and the problem of the value. */
  public static final class Json implements UDF1 {
    private static final long serialVersionUID = 1L;
    private final ValueDecoder decoder;

    public Json(ValueDecoder decoder) {
      this.decoder = decoder;
    }

    public Object call(Object value) {
      if (value == null) {
        return null;
      }
      try {
        return RowFactory.create(new Object[] {decoder.decode((byte[]) value), null});
      } catch (Undecodable e) {
        return RowFactory.create(new Object[] {null, "value: " + e.getMessage()});
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
  }
}
