package io.queryabletopics;

import com.google.protobuf.DescriptorProtos;
import com.google.protobuf.Descriptors;
import com.google.protobuf.InvalidProtocolBufferException;
import com.squareup.wire.schema.CoreLoader;
import com.squareup.wire.schema.ErrorCollector;
import com.squareup.wire.schema.Field;
import com.squareup.wire.schema.Linker;
import com.squareup.wire.schema.Loader;
import com.squareup.wire.schema.Location;
import com.squareup.wire.schema.MessageType;
import com.squareup.wire.schema.ProtoFile;
import com.squareup.wire.schema.Schema;
import com.squareup.wire.schema.Type;
import com.squareup.wire.schema.internal.SchemaEncoder;
import com.squareup.wire.schema.internal.parser.ProtoParser;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Read the descriptors of messages out of .proto text, or out of a descriptor set. Every failure is an IllegalArgumentException. */
public final class ProtobufFiles {
  static final String MAIN = "schema.proto";

  private static final int TYPES_MAX = 10000;

  private ProtobufFiles() {}

  /** Return the descriptors of .proto text, or of a descriptor set in base64. */
  static List read(String given) {
    return given.indexOf('{') >= 0 || given.indexOf(';') >= 0 ? texts(given, new HashMap()) : descriptorSet(given);
  }

  /**
   * Return the descriptor of a .proto text as the only one.
   *
   * @param imports the texts of what it imports, by the path of the import; the well-known types are there without that
   */
  public static List texts(String text, Map imports) {
    try {
      Files files = new Files(imports);
      ProtoFile main = files.parsed(MAIN, text);
      List sources = new ArrayList();
      sources.add(main);
      sources.add(files.load("google/protobuf/descriptor.proto")); // the encoder knows options by it
      Schema schema = new Linker(files, new ErrorCollector(), true, true).link(sources);
      Map encoded = new LinkedHashMap();
      SchemaEncoder encoder = new SchemaEncoder(schema);
      for (Iterator each = schema.getProtoFiles().iterator(); each.hasNext();) {
        ProtoFile file = (ProtoFile) each.next();
        DescriptorProtos.FileDescriptorProto made =
            DescriptorProtos.FileDescriptorProto.parseFrom(bytes(encoder.encode(file)));
        encoded.put(file.getLocation().getPath(), withJsonNames(made, file));
      }
      List found = new ArrayList();
      found.add(built(MAIN, encoded, new HashMap()));
      return found;
    } catch (InvalidProtocolBufferException e) {
      throw new IllegalArgumentException(e.getMessage());
    } catch (StackOverflowError e) {
      throw new IllegalArgumentException("it is nested too deeply");
    } catch (IllegalArgumentException e) {
      throw e;
    } catch (RuntimeException e) { // of the parser, which has several
      throw new IllegalArgumentException(firstLine(e));
    }
  }

  /** Return the bytes of Okio's ByteString by reflection: Janino cannot read that class, for its nested annotations. */
  private static byte[] bytes(Object string) {
    try {
      return (byte[]) string.getClass().getMethod("toByteArray", new Class[0]).invoke(string, new Object[0]);
    } catch (ReflectiveOperationException e) {
      throw new IllegalStateException(e);
    }
  }

  private static List descriptorSet(String base64) {
    Map encoded = new LinkedHashMap();
    String neither = "it is neither .proto text nor a descriptor set in base64";
    try {
      byte[] bytes = Base64.getMimeDecoder().decode(base64);
      List files = DescriptorProtos.FileDescriptorSet.parseFrom(bytes).getFileList();
      for (int i = 0; i < files.size(); i++) {
        DescriptorProtos.FileDescriptorProto file = (DescriptorProtos.FileDescriptorProto) files.get(i);
        encoded.put(file.getName(), file);
      }
    } catch (InvalidProtocolBufferException e) {
      throw new IllegalArgumentException(neither);
    } catch (IllegalArgumentException e) {
      throw new IllegalArgumentException(neither);
    }
    if (encoded.isEmpty()) {
      throw new IllegalArgumentException(neither);
    }
    List found = new ArrayList();
    Map built = new HashMap();
    for (Iterator names = encoded.keySet().iterator(); names.hasNext();) {
      found.add(built((String) names.next(), encoded, built));
    }
    return found;
  }

  private static Descriptors.FileDescriptor built(String name, Map encoded, Map built) {
    if (built.containsKey(name)) {
      if (built.get(name) == null) {
        throw new IllegalArgumentException(name + " imports itself");
      }
      return (Descriptors.FileDescriptor) built.get(name);
    }
    DescriptorProtos.FileDescriptorProto file = (DescriptorProtos.FileDescriptorProto) encoded.get(name);
    if (file == null) {
      throw new IllegalArgumentException(missing(name));
    }
    built.put(name, null);
    Descriptors.FileDescriptor[] imports = new Descriptors.FileDescriptor[file.getDependencyCount()];
    for (int i = 0; i < imports.length; i++) {
      imports[i] = built(file.getDependency(i), encoded, built);
    }
    DescriptorProtos.FileDescriptorProto.Builder strict = file.toBuilder();
    strict.getOptionsBuilder().setJavaStringCheckUtf8(true); // proto2 would replace bytes that are no UTF-8
    try {
      Descriptors.FileDescriptor made = Descriptors.FileDescriptor.buildFrom(strict.build(), imports);
      built.put(name, made);
      return made;
    } catch (Descriptors.DescriptorValidationException e) {
      throw new IllegalArgumentException(e.getMessage());
    }
  }

  /** Return all messages of the files but those of Google's, nested ones too, by their full names. */
  static Map messages(List files) {
    Map found = new LinkedHashMap();
    for (int i = 0; i < files.size(); i++) {
      Descriptors.FileDescriptor file = (Descriptors.FileDescriptor) files.get(i);
      if (!file.getPackage().equals("google.protobuf")) {
        addMessages(file.getMessageTypes(), found);
      }
    }
    return found;
  }

  private static void addMessages(List messages, Map found) {
    for (int i = 0; i < messages.size(); i++) {
      Descriptors.Descriptor message = (Descriptors.Descriptor) messages.get(i);
      if (found.size() > TYPES_MAX) {
        throw new IllegalArgumentException("it has more than " + TYPES_MAX + " messages");
      }
      if (!message.getOptions().getMapEntry()) {
        found.put(message.getFullName(), message);
        addMessages(message.getNestedTypes(), found);
      }
    }
  }

  /** Put the option json_name of each field into the descriptor, where the encoder leaves it out. */
  private static DescriptorProtos.FileDescriptorProto withJsonNames(DescriptorProtos.FileDescriptorProto made, ProtoFile file) {
    DescriptorProtos.FileDescriptorProto.Builder builder = made.toBuilder();
    int at = 0;
    for (Iterator each = file.getTypes().iterator(); each.hasNext();) {
      Object type = each.next();
      if (type instanceof MessageType) {
        addJsonNames(builder.getMessageTypeBuilder(at++), (MessageType) type);
      }
    }
    return builder.build();
  }

  private static void addJsonNames(DescriptorProtos.DescriptorProto.Builder into, MessageType from) {
    Map names = new HashMap();
    for (Iterator each = from.getFieldsAndOneOfFields().iterator(); each.hasNext();) {
      Field field = (Field) each.next();
      if (field.getDeclaredJsonName() != null) {
        names.put(field.getName(), field.getDeclaredJsonName());
      }
    }
    for (int i = 0; i < into.getFieldCount(); i++) {
      String name = (String) names.get(into.getField(i).getName());
      if (name != null) {
        into.getFieldBuilder(i).setJsonName(name);
      }
    }
    Map nested = new HashMap();
    for (int i = 0; i < into.getNestedTypeCount(); i++) {
      nested.put(into.getNestedType(i).getName(), into.getNestedTypeBuilder(i));
    }
    for (Iterator each = from.getNestedTypes().iterator(); each.hasNext();) {
      Type type = (Type) each.next();
      Object builder = nested.get(type.getType().getSimpleName());
      if (type instanceof MessageType && builder != null) {
        addJsonNames((DescriptorProtos.DescriptorProto.Builder) builder, (MessageType) type);
      }
    }
  }

  private static String missing(String name) {
    return "it imports " + name + ", which is not there; give a descriptor set made with --include_imports";
  }

  private static String firstLine(RuntimeException e) {
    String said = e.getMessage() == null ? e.getClass().getSimpleName() : e.getMessage().trim();
    int end = said.indexOf('\n');
    return end < 0 ? said : said.substring(0, end);
  }

  /** Find what a file imports: among the given texts, or among the well-known types. */
  private static final class Files implements Loader {
    private final Map texts;
    private final Map files = new HashMap();

    Files(Map texts) {
      this.texts = texts;
    }

    ProtoFile parsed(String path, String text) {
      ProtoFile file = ProtoFile.Companion.get(ProtoParser.Companion.parse(Location.get(path), text));
      files.put(path, file);
      return file;
    }

    public ProtoFile load(String path) {
      ProtoFile file = (ProtoFile) files.get(path);
      if (file != null) {
        return file;
      }
      if (texts.containsKey(path)) {
        return parsed(path, (String) texts.get(path));
      }
      try {
        file = CoreLoader.INSTANCE.load(path);
      } catch (RuntimeException e) { // it is no well-known one
        throw new IllegalArgumentException(missing(path));
      }
      files.put(path, file);
      return file;
    }

    public Loader withErrors(ErrorCollector errors) {
      return this;
    }
  }
}
