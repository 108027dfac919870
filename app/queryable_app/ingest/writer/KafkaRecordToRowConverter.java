package org.apache.spark.sql.kafka010;

import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Function1;
import scala.runtime.AbstractFunction1;

/**
 * Make Spark's rows of Kafka's records, in place of the class of this name in Spark's connector: the JVM finds this one first.
 *
 * Strategy: a row without headers is written into Spark's layout directly. Spark's own class makes a sequence of boxed values
 * and then a generic row of each record, and compiles a projection for each task: a fifth of the time of a task that reads a
 * backlog. Rows are reused, as Spark's projections reuse them.
 */
public class KafkaRecordToRowConverter {
  private static final int FIELDS = 7;
  private static final int FIXED = 8 + 8 * FIELDS; // which columns are null, and a word for each column
  private static final long EXACT_MS_MIN = -2208988800000L; // of 1900: old calendars end in all time zones
  private static final long EXACT_MS_MAX = Long.MAX_VALUE / 1000;

  /** Return a function from records to rows. */
  public Function1 toUnsafeRowProjector(boolean withHeaders) {
    return withHeaders ? new WithHeaders() : new WithoutHeaders();
  }

  private static long micros(ConsumerRecord record) {
    long timestampMs = record.timestamp();
    if (timestampMs >= EXACT_MS_MIN && timestampMs <= EXACT_MS_MAX) {
      return timestampMs * 1000;
    }
    try {
      return DateTimeUtils.fromJavaTimestamp(new Timestamp(timestampMs));
    } catch (ArithmeticException e) {
      throw KafkaExceptions.kafkaMalformedRecordTimestamp(record.topic(), record.partition(), record.offset(), timestampMs, e);
    }
  }

  private static final class WithoutHeaders extends AbstractFunction1 {
    private final UnsafeRow row = new UnsafeRow(FIELDS);
    private byte[] bytes = new byte[1024];
    private String topic = "";
    private byte[] topicBytes = new byte[0];
    private int end;

    public Object apply(Object object) {
      ConsumerRecord record = (ConsumerRecord) object;
      byte[] key = (byte[]) record.key();
      byte[] value = (byte[]) record.value();
      if (record.topic() != topic) { // the same object for all records of a task
        topic = record.topic();
        topicBytes = UTF8String.fromString(topic).getBytes();
      }
      int size = FIXED + padded(key) + padded(value) + padded(topicBytes);
      if (size > bytes.length) {
        bytes = new byte[Math.max(size, 2 * bytes.length)];
      }
      end = FIXED;
      word(0, (key == null ? 1 : 0) | (value == null ? 2 : 0));
      content(0, key);
      content(1, value);
      content(2, topicBytes);
      word(1 + 3, record.partition());
      word(1 + 4, record.offset());
      word(1 + 5, micros(record));
      word(1 + 6, record.timestampType().id);
      row.pointTo(bytes, size);
      return row;
    }

    private void content(int column, byte[] content) {
      if (content == null) {
        word(1 + column, 0);
        return;
      }
      int length = content.length;
      if ((length & 7) != 0) { // equal rows have equal bytes
        Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET + end + (length & ~7), 0);
      }
      System.arraycopy(content, 0, bytes, end, length);
      word(1 + column, ((long) end << 32) | length);
      end += padded(content);
    }

    private void word(int index, long value) {
      Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET + 8L * index, value);
    }

    private static int padded(byte[] content) {
      return content == null ? 0 : (content.length + 7) & ~7;
    }
  }

  private static final class WithHeaders extends AbstractFunction1 {
    private static final StructType HEADER =
        new StructType().add("key", DataTypes.StringType).add("value", DataTypes.BinaryType);
    private final UnsafeProjection projection =
        UnsafeProjection.create(new DataType[] {DataTypes.BinaryType, DataTypes.BinaryType, DataTypes.StringType,
            DataTypes.IntegerType, DataTypes.LongType, DataTypes.TimestampType, DataTypes.IntegerType,
            DataTypes.createArrayType(HEADER)});

    public Object apply(Object object) {
      ConsumerRecord record = (ConsumerRecord) object;
      Object[] columns = {record.key(), record.value(), UTF8String.fromString(record.topic()),
          Integer.valueOf(record.partition()), Long.valueOf(record.offset()), Long.valueOf(micros(record)),
          Integer.valueOf(record.timestampType().id), headers(record.headers().iterator())};
      return projection.apply((InternalRow) new GenericInternalRow(columns));
    }

    private static Object headers(Iterator headers) {
      List found = new ArrayList();
      while (headers.hasNext()) {
        Header header = (Header) headers.next();
        found.add(new GenericInternalRow(new Object[] {UTF8String.fromString(header.key()), header.value()}));
      }
      return found.isEmpty() ? null : new GenericArrayData(found.toArray());
    }
  }
}
