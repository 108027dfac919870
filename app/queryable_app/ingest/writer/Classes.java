package io.queryabletopics;

import java.util.Iterator;
import java.util.List;

/** Loads classes for the archive of classes: ingest.training. */
public final class Classes {
  private Classes() {}

  /** Those that cannot be loaded are left out: they belong to libraries that are not there. */
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
