#include "bucket/curl_library.h"

#include <dlfcn.h>

#include "dsckpt/error.h"

namespace dsckpt {
namespace {

#ifdef DSCKPT_LOADS_CURL

// All builds since 7.16 have this name.
constexpr const char* kCurlName = "libcurl.so.4";

void* find_curl() {
  void* const library = ::dlopen(kCurlName, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  throw IoError({.file = kCurlName}, "cannot be loaded, and object stores need it", 0)
      .with_hint("install libcurl (Debian: libcurl4); the static build needs none");
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return;
  throw IoError({.file = kCurlName}, std::string("is too old: it has no ") + name, 0)
      .with_hint("libcurl 7.85 and later are enough");
}

#define DSCKPT_CURL(name) find(library, "curl_" #name, found.name)

#else

#define DSCKPT_CURL(name) found.name = &::curl_##name

#endif

CurlLibrary start() {
  CurlLibrary found;
#ifdef DSCKPT_LOADS_CURL
  void* const library = find_curl();
#endif
  DSCKPT_CURL(easy_cleanup);
  DSCKPT_CURL(easy_getinfo);
  DSCKPT_CURL(easy_init);
  DSCKPT_CURL(easy_reset);
  DSCKPT_CURL(easy_setopt);
  DSCKPT_CURL(easy_strerror);
  DSCKPT_CURL(global_init);
  DSCKPT_CURL(multi_add_handle);
  DSCKPT_CURL(multi_cleanup);
  DSCKPT_CURL(multi_info_read);
  DSCKPT_CURL(multi_init);
  DSCKPT_CURL(multi_perform);
  DSCKPT_CURL(multi_poll);
  DSCKPT_CURL(multi_remove_handle);
  DSCKPT_CURL(slist_append);
  DSCKPT_CURL(slist_free_all);
  DSCKPT_CURL(version_info);
  if (found.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    throw IoError({}, "libcurl cannot be started", 0);
  }
  return found;
}

#undef DSCKPT_CURL

}  // namespace

const CurlLibrary& curl() {
  static const CurlLibrary library = start();
  return library;
}

}  // namespace dsckpt
