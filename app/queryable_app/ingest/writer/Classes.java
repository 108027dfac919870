package io.queryabletopics;

import java.util.Iterator;
import java.util.List;

/** Load classes for the class archive (ingest.training). */
public final class Classes {
  private Classes() {}

  /** Skip classes that cannot be loaded: they need libraries that Spark does not ship. */
  public static void load(List names) {
    ClassLoader loader = Classes.class.getClassLoader();
    Iterator each = names.iterator();
    while (each.hasNext()) {
      try {
        Class.forName((String) each.next(), false, loader);
      } catch (ClassNotFoundException e) {
        continue;
      } catch (LinkageError e) {
        continue;
      }
    }
  }
}
