package io.queryabletopics;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.protobuf.Descriptors;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.Serializable;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.URLEncoder;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.avro.Schema;

/**
 * Ask a schema registry, by the protocol of Confluent's, for the schema of an id.
 *
 * A schema of an id never changes, so that it is asked for once in the life of the JVM. A registry that does not answer is no
 * fault of the record: the query ends with an exception that names the registry, and starts again at that record. An id that
 * the registry does not have makes the record a bad one.
 */
public final class SchemaRegistry implements Serializable {
  private static final long serialVersionUID = 1L;

  /** A zero byte and the id of the schema, which every record begins with. */
  static final int FRAME = 5;

  private static final int CONNECT_MS = 3000;
  private static final int READ_MS = 5000;
  private static final int ATTEMPTS = 3;
  private static final int DEADLINE_MS = 10000; // of one answer
  private static final int ANSWER_BYTES_MAX = 1 << 20;
  private static final int REFERENCES_MAX = 100;
  private static final int UNKNOWN_MAX = 10000;
  private static final long UNKNOWN_NANOS = 30000000000L; // a schema may be registered after its records
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Map KNOWN = new ConcurrentHashMap(); // by the registry's address and the id
  private static final Map UNKNOWN = new ConcurrentHashMap(); // the same: when it was last asked for

  private final String url;
  private final String authorization;
  private final int readMs;
  private final int deadlineMs;

  /** @param authorization the header that each request has; empty: none */
  public SchemaRegistry(String url, String authorization) {
    this(url, authorization, READ_MS, DEADLINE_MS);
  }

  /**
   * @param readMs     how long the next byte of an answer may take
   * @param deadlineMs how long a whole answer may take
   */
  public SchemaRegistry(String url, String authorization, int readMs, int deadlineMs) {
    this.url = url.endsWith("/") ? url.substring(0, url.length() - 1) : url;
    this.authorization = authorization;
    this.readMs = readMs;
    this.deadlineMs = deadlineMs;
  }

  static int id(byte[] value) throws Undecodable {
    if (value.length < FRAME || value[0] != 0) {
      throw new Undecodable("it does not begin with a zero byte and the id of a schema, as with a schema registry");
    }
    return (value[1] & 0xff) << 24 | (value[2] & 0xff) << 16 | (value[3] & 0xff) << 8 | value[4] & 0xff;
  }

  Schema avro(int id) throws IOException {
    return (Schema) known(id, "AVRO");
  }

  Descriptors.FileDescriptor protobuf(int id) throws IOException {
    return (Descriptors.FileDescriptor) known(id, "PROTOBUF");
  }

  /** Return a schema that is not shared with other threads. Throws IllegalArgumentException if it cannot be used. */
  JsonSchema json(int id) throws IOException {
    Object[] texts = (Object[]) known(id, "JSON");
    return new JsonSchema((String) texts[0], (Map) texts[1]);
  }

  /** Return the schema of an id as the library of its type has it; a JSON Schema as its text and those it refers to. */
  private Object known(int id, String type) throws IOException {
    String key = url + "#" + type + "#" + id;
    Object known = KNOWN.get(key);
    if (known != null) {
      return known;
    }
    JsonNode answer = schema(key, id, type);
    Map references = new LinkedHashMap();
    try {
      addReferences(answer, references, new HashMap());
      String text = member(answer, "schema").asText();
      known = type.equals("JSON") ? new Object[] {text, references}
          : type.equals("AVRO") ? (Object) parsedAvro(text, references) : ProtobufFiles.texts(text, references).get(0);
    } catch (RuntimeException e) { // Avro's parser has others than its own
      throw new Undecodable("schema " + id + " of the registry cannot be read: " + e.getMessage());
    } catch (StackOverflowError e) {
      throw new Undecodable("schema " + id + " of the registry is nested too deeply");
    }
    KNOWN.put(key, known);
    return known;
  }

  private static Schema parsedAvro(String text, Map references) {
    Schema.Parser parser = new Schema.Parser();
    for (Iterator each = references.values().iterator(); each.hasNext();) {
      parser.parse((String) each.next());
    }
    return parser.parse(text);
  }

  /** Add the texts of the schemas that one refers to, by their names. What a schema refers to stands before it. */
  private void addReferences(JsonNode of, Map texts, Map seen) throws IOException {
    JsonNode references = member(of, "references");
    for (int i = 0; i < references.size(); i++) {
      JsonNode reference = (JsonNode) references.get(i);
      String path = versionPath(reference);
      String name = member(reference, "name").asText();
      if (seen.put(path, path) != null) {
        continue;
      }
      if (seen.size() > REFERENCES_MAX) {
        throw new Undecodable("its schema refers to more than " + REFERENCES_MAX + " others");
      }
      JsonNode referred = get(path);
      if (referred == null) {
        throw new Undecodable("its schema refers to " + name + ", which the registry does not have");
      }
      addReferences(referred, texts, seen);
      texts.put(name, member(referred, "schema").asText());
    }
  }

  /** Return a member, or a node that is missing. Janino sees the interface's result type without the cast. */
  private static JsonNode member(JsonNode of, String name) {
    return (JsonNode) of.path(name);
  }

  private static String versionPath(JsonNode reference) throws IOException {
    String subject = URLEncoder.encode(member(reference, "subject").asText(), "UTF-8").replace("+", "%20");
    return "/subjects/" + subject + "/versions/" + member(reference, "version").asInt();
  }

  /** Return the registry's answer for an id. */
  private JsonNode schema(String key, int id, String wanted) throws IOException {
    Long asked = (Long) UNKNOWN.get(key);
    JsonNode answer = null;
    if (asked == null || System.nanoTime() - asked.longValue() > UNKNOWN_NANOS) {
      answer = get("/schemas/ids/" + (id & 0xffffffffL));
    }
    if (answer == null) {
      if (asked == null && UNKNOWN.size() >= UNKNOWN_MAX) {
        UNKNOWN.clear();
      }
      if (asked == null) {
        UNKNOWN.put(key, Long.valueOf(System.nanoTime()));
      }
      throw new Undecodable("its schema has the id " + (id & 0xffffffffL) + ", which the registry does not have");
    }
    UNKNOWN.remove(key);
    String type = member(answer, "schemaType").asText("AVRO");
    if (!type.equals(wanted)) {
      throw new Undecodable("schema " + id + " of the registry is of the type " + type + ", and not " + wanted);
    }
    return answer;
  }

  /** Return an answer, or null if the registry says that it has no such schema. */
  private JsonNode get(String path) throws IOException {
    IOException last = null;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
      try {
        if (attempt > 0) {
          Thread.sleep(200L << attempt);
        }
        return attempt(path);
      } catch (InterruptedException e) { // the query stops
        Thread.currentThread().interrupt();
        throw new IOException("interrupted while the schema registry " + url + " was asked", e);
      } catch (IOException e) {
        last = e;
      }
    }
    String reason = last.getMessage() == null ? last.getClass().getSimpleName() : last.getMessage();
    throw new IOException("the schema registry " + url + " gives no schema: " + reason);
  }

  private JsonNode attempt(String path) throws IOException {
    HttpURLConnection connection = (HttpURLConnection) URI.create(url + path).toURL().openConnection();
    connection.setInstanceFollowRedirects(false); // credentials are for this address
    connection.setConnectTimeout(CONNECT_MS);
    connection.setReadTimeout(readMs);
    connection.setRequestProperty("Accept", "application/vnd.schemaregistry.v1+json, application/json");
    if (authorization.length() > 0) {
      connection.setRequestProperty("Authorization", authorization);
    }
    try {
      int status = connection.getResponseCode();
      InputStream body = status < 400 ? connection.getInputStream() : connection.getErrorStream();
      JsonNode answer = parse(body);
      if (status == 200 && answer != null && member(answer, "schema").isTextual()) {
        return answer;
      }
      int code = answer == null ? 0 : member(answer, "error_code").asInt();
      if (status == 404 && code >= 40401 && code <= 40403) { // subject, version or schema not found
        return null;
      }
      if (status == 401 || status == 403) {
        throw new IOException("it answers " + status + ": check schema.registry.basic.auth.user.info in the Secret");
      }
      throw new IOException("it answers " + status + (answer == null ? " without JSON" : "") + ": check the address");
    } finally {
      connection.disconnect();
    }
  }

  /** Return null for anything but JSON of a bounded size. */
  private JsonNode parse(InputStream body) throws IOException {
    if (body == null) {
      return null;
    }
    long since = System.nanoTime();
    ByteArrayOutputStream read = new ByteArrayOutputStream();
    byte[] part = new byte[8192];
    for (int n = body.read(part); n >= 0; n = body.read(part)) {
      read.write(part, 0, n);
      if (read.size() > ANSWER_BYTES_MAX) {
        throw new IOException("its answer has more than " + ANSWER_BYTES_MAX + " bytes");
      }
      if (System.nanoTime() - since > deadlineMs * 1000000L) {
        throw new IOException("its answer takes longer than " + deadlineMs + " ms");
      }
    }
    try {
      return JSON.readTree(read.toByteArray());
    } catch (com.fasterxml.jackson.core.JsonProcessingException e) {
      return null;
    }
  }
}
