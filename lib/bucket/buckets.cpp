#include "bucket/buckets.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "bucket/bucket_url.h"
#include "bucket/credentials.h"
#include "bucket/http_client.h"
#include "bucket/listing.h"
#include "bucket/object_reader.h"
#include "bucket/object_writer.h"
#include "bucket/web_folder.h"
#include "dsckpt/error.h"
#include "io/far_files.h"
#include "io/folder.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kRequestBytes = 8 << 20;
// Buffers for ranges that have come and are not used yet, beside those of running requests.
constexpr uint64_t kMostSpare = 8;
constexpr const char* kUsualRegion = "us-east-1";

// A temporary folder. A child process removes it when this process ends, however it ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = make_temporary_folder("dsckpt-bucket-");
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    child_ = ::fork();
    if (child_ == 0) outlive(ends[0]);
    ::close(ends[0]);
    alive_ = FileDescriptor(ends[1]);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    alive_.reset();
    if (child_ > 0) ::waitpid(child_, nullptr, 0);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  // Runs in the child. The other end of the pipe closes when the parent ends.
  [[noreturn]] void outlive(int parent) {
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, nullptr);
    ::setsid();
    // The child must hold neither the output, which others may wait for, nor other pipes open.
    const int end = ::dup2(parent, 0) < 0 ? parent : 0;
    ::close_range(static_cast<unsigned>(end) + 1, ~0U, 0);
    char byte = 0;
    while (::read(end, &byte, 1) < 0 && errno == EINTR) {
    }
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    ::execl("/bin/true", "true", static_cast<char*>(nullptr));
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }

  fs::path path_;
  pid_t child_ = -1;
  FileDescriptor alive_;
};

// The URL in messages.
std::string shown_url(const BucketUrl& url) {
  return url.site() + (url.prefix.empty() ? "" : "/" + url.prefix);
}

// Refuses an object whose key cannot be a file's name.
void check_key(const ListedObject& object, const BucketUrl& url) {
  const fs::path path(object.key);
  const bool is_odd = object.key.front() == '/' || object.key.find('\0') != object.key.npos ||
                      object.key.find("//") != object.key.npos ||
                      std::any_of(path.begin(), path.end(),
                                  [](const fs::path& part) { return part == "." || part == ".."; });
  if (!is_odd) return;
  throw UnsupportedError({.file = url.site() + "/" + object.key},
                         "is the key of an object, but not a possible file name")
      .with_hint("give a prefix without such keys");
}

}  // namespace

struct Buckets::Impl {
  // A bucket that is read from.
  struct Mounted {
    BucketAccess access;
    std::shared_ptr<ObjectReader> reader;
    std::shared_ptr<ObjectWriter> writer;
  };

  // `site`: BucketUrl::site().
  fs::path root_of(const std::string& site) const {
    const size_t colon = site.find("://");
    return folder->path() / site.substr(0, colon) / site.substr(colon + 3);
  }

  void stand_in(const BucketUrl& url, const std::vector<ListedObject>& objects) {
    ObjectReader& reader = *mounted.at(url.site()).reader;
    for (const ListedObject& object : objects) {
      check_key(object, url);
      const fs::path path = root_of(url.site()) / object.key;
      std::error_code failed;
      if (object.key.ends_with('/')) {  // an empty folder, as consoles make them
        fs::create_directories(path, failed);
      } else {
        fs::create_directories(path.parent_path(), failed);
        if (!failed && !fs::exists(path, failed)) {
          make_stand_in(path, object.size, object.modified);
          reader.add(object);
        }
      }
      if (failed) {
        throw IoError({.file = url.site() + "/" + object.key},
                      "cannot be represented in " + folder->path().string(), failed.value());
      }
    }
  }

  void stand_in_again(const std::string& site, const FarObject& object) {
    const fs::path path = root_of(site) / object.path;
    std::error_code failed;
    fs::remove(path, failed);
    fs::create_directories(path.parent_path(), failed);
    make_stand_in(path, object.size, object.modified);
    mounted.at(site).reader->replace({object.path, object.etag, object.size, object.modified});
  }

  // Lists the content of a folder. `beside` is list_objects()'s.
  static std::vector<ListedObject> listed(const BucketAccess& access, const std::string& folder,
                                          bool beside) {
    if (access.is_web) return list_web_folder(access, folder, beside);
    return list_objects(access, folder.empty() ? "" : folder + "/", beside);
  }

  void open(const BucketUrl& url, BucketUse use) {
    const BucketAccess& access = mounted.at(url.site()).access;
    const std::vector<ListedObject> below = listed(access, url.prefix, false);
    stand_in(url, below);
    if (url.prefix.empty() || use == BucketUse::output) return;
    // Configurations lie beside a tag's folder, and the URL may name a single object.
    const size_t slash = url.prefix.rfind('/');
    const std::string above = slash == url.prefix.npos ? "" : url.prefix.substr(0, slash);
    try {
      std::vector<ListedObject> beside = listed(access, above, true);
      // If nothing was found, subfolders too are listed, so that messages can name them.
      if (!below.empty()) {
        std::erase_if(beside, [](const ListedObject& object) { return object.key.ends_with('/'); });
      }
      stand_in(url, beside);
    } catch (const Error& error) {
      // The credentials may permit listing only the prefix.
      if (below.empty() || error.kind() == ErrorKind::interrupted) throw;
    }
  }

  std::optional<TemporaryFolder> folder;
  struct Used {
    BucketUrl url;
    BucketUse use;
  };
  std::vector<Used> urls;
  std::shared_ptr<HttpClient> client;
  std::map<std::string, Mounted> mounted;
};

namespace {

// The URL of the bucket, without a slash at its end.
std::string url_of_bucket(const BucketOptions& options, const std::string& endpoint,
                          const std::string& region, const std::string& bucket) {
  // Wildcard certificates cover only one label before the host.
  const bool has_dots = bucket.find('.') != bucket.npos;
  const bool in_path = options.path_style.value_or(!endpoint.empty() || has_dots);
  std::string host = endpoint.empty() ? "https://s3." + region + ".amazonaws.com" : endpoint;
  while (host.ends_with('/')) host.pop_back();
  const size_t scheme = host.find("://");
  if (!host.starts_with("http://") && !host.starts_with("https://")) {
    throw UsageError("the endpoint '" + host + "' is not a URL")
        .with_hint("--s3-endpoint https://HOST, or http://HOST:PORT");
  }
  if (in_path) return host + "/" + bucket;
  return host.substr(0, scheme + 3) + bucket + "." + host.substr(scheme + 3);
}

}  // namespace

Buckets::Buckets() : impl_(std::make_unique<Impl>()) {}

Buckets::~Buckets() {
  for (const auto& [site, mounted] : impl_->mounted) unmount_far(impl_->root_of(site));
}

fs::path Buckets::place_of(const std::string& url, BucketUse use) {
  const BucketUrl parsed = parse_bucket_url(url);
  if (parsed.is_web() && use == BucketUse::output) {
    throw UsageError(shown_url(parsed) + ": cannot be written to")
        .with_hint("outputs go to a folder, or to s3://BUCKET/PREFIX");
  }
  if (!impl_->folder) impl_->folder.emplace();
  impl_->urls.push_back({parsed, use});
  const fs::path root = impl_->root_of(parsed.site());
  return parsed.prefix.empty() ? root : root / parsed.prefix;
}

bool Buckets::is_empty() const {
  return impl_->urls.empty();
}

bool Buckets::has_stores() const {
  return std::any_of(impl_->urls.begin(), impl_->urls.end(),
                     [](const Impl::Used& used) { return !used.url.is_web(); });
}

void Buckets::open(const BucketOptions& options,
                   const std::function<const char*(const char*)>& variables,
                   const std::function<bool()>& cancelled) {
  const auto first_of = [&](std::initializer_list<std::string> given,
                            std::initializer_list<const char*> names, const std::string& last) {
    for (const std::string& text : given) {
      if (!text.empty()) return text;
    }
    for (const char* name : names) {
      const char* const value = variables(name);
      if (value != nullptr && *value != '\0') return std::string(value);
    }
    return last;
  };
  const SharedSettings shared = read_shared_settings(variables);
  const std::string endpoint =
      first_of({options.endpoint}, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, shared.endpoint);
  const std::string region = first_of({options.region}, {"AWS_REGION", "AWS_DEFAULT_REGION"},
                                      shared.region.empty() ? kUsualRegion : shared.region);
  unsigned requests = options.requests;
  if (options.max_memory != 0) {
    const uint64_t room = options.max_memory / 4 / kRequestBytes;
    const uint64_t most = room - std::min(room, std::clamp<uint64_t>(room / 5, 1, kMostSpare));
    requests = static_cast<unsigned>(std::clamp<uint64_t>(most, 1, requests));
  }
  std::set<std::string> read;
  for (const Impl::Used& used : impl_->urls) {
    if (used.use != BucketUse::output) read.insert(used.url.site());
  }
  const uint64_t spare = std::clamp<uint64_t>(requests / 4, 1, kMostSpare);
  const auto buffers = static_cast<unsigned>((requests + spare) / std::max<size_t>(read.size(), 1));
  impl_->client = std::make_shared<HttpClient>(requests, cancelled);
  std::shared_ptr<CredentialSource> credentials;
  if (!options.is_unsigned) {  // no credentials are looked up until a request is signed
    credentials = std::make_shared<CredentialSource>(variables, shared, region, *impl_->client);
  }
  for (const Impl::Used& used : impl_->urls) {
    const BucketUrl& url = used.url;
    const std::string site = url.site();
    if (!impl_->mounted.contains(site)) {
      BucketAccess access{.name = site,
                          .url = site,
                          .is_web = url.is_web(),
                          .region = region,
                          .client = impl_->client,
                          .requests = requests,
                          .buffers = buffers};
      std::shared_ptr<ObjectWriter> writer;
      if (!url.is_web()) {
        access.url = url_of_bucket(options, endpoint, region, url.bucket);
        access.credentials = credentials;
        writer = std::make_shared<ObjectWriter>(
            access, [impl = impl_.get(), site](const FarObject& object) {
              impl->stand_in_again(site, object);
            });
      }
      auto reader = std::make_shared<ObjectReader>(access);
      impl_->mounted.emplace(site, Impl::Mounted{access, reader, writer});
      mount_far(impl_->root_of(site), kNoMachine, access.name, reader, writer);
    }
    if (options.lists) in_context({.file = shown_url(url)}, [&] { impl_->open(url, used.use); });
  }
}

HttpTraffic Buckets::traffic() const {
  return impl_->client == nullptr ? HttpTraffic() : impl_->client->traffic();
}

}  // namespace dsckpt
