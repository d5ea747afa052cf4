// FarStore: an object store as a place for outputs.
//
// An object is made by one request, or from the parts of an upload, which nobody sees before it is
// completed (Amazon S3 API Reference, PutObject, CreateMultipartUpload, UploadPart,
// CompleteMultipartUpload). Each says whose it is. There are no folders, and nothing is renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace dsckpt {

// An object that is there. Paths are those in the store, without a slash at their begin.
struct FarObject {
  std::string path = {};
  std::string etag = {};  // changes with what it holds; "" where nothing is
  uint64_t size = 0;
  int64_t modified = 0;  // nanoseconds since the epoch, by the store's clock
};

// An upload that was neither completed nor given up.
struct FarUpload {
  std::string path = {};
  std::string id = {};
  int64_t begun = 0;  // nanoseconds since the epoch, by the store's clock
};

// What came of giving an object its name.
struct FarPublished {
  enum class What : uint8_t {
    done,
    refused,  // what is there is not what was to be there before
    again,    // somebody else did something with it meanwhile: an upload must be sent anew
  } what = What::done;
  std::string etag = {};  // of what is there now, where it is done
};

// Any thread. What may pass is tried again (HttpClient). All throw IoError that names the object,
// and InterruptedError.
class FarStore {
 public:
  virtual ~FarStore() = default;
  // How many requests may be under way at once.
  virtual unsigned requests() const = 0;

  // All objects whose paths begin with `front`.
  virtual std::vector<FarObject> list(const std::string& front) = 0;
  // Of the object of that path; nullopt if there is none.
  virtual std::optional<std::string> find_etag(const std::string& path) = 0;
  // The same of an object that this run has made: so put() and complete() that threw have done it
  // all the same.
  virtual std::optional<std::string> find_own(const std::string& path) = 0;
  // All that it holds, `most` bytes at most.
  virtual std::string read(const std::string& path, size_t most) = 0;

  // An object of one request. `before`: the ETag of what it takes the place of; "": there must be
  // nothing; nullopt: whatever is there. A store that does not know conditions takes any.
  virtual FarPublished put(const std::string& path, std::span<const std::byte> bytes,
                           const std::optional<std::string>& before) = 0;

  struct Begun {
    std::string id = {};
    bool maybe_twice = false;  // a reply was lost: another one may be there
  };
  virtual Begun begin_upload(const std::string& path) = 0;
  // Part `number`, from 1 on, with a checksum that the store compares. Returns the part's ETag. The
  // same number again takes the place of what was sent before.
  virtual std::string send_part(const std::string& path, const std::string& upload, unsigned number,
                                std::span<const std::byte> bytes) = 0;
  // `parts`: the ETags of all of them in their order. `before` as of put(). A reply that is lost,
  // or is an error in the form of a success, is resolved by asking what is there.
  virtual FarPublished complete(const std::string& path, const std::string& upload,
                                std::span<const std::string> parts,
                                const std::optional<std::string>& before) = 0;
  // Does nothing if there is no such upload any more.
  virtual void abort_upload(const std::string& path, const std::string& upload) = 0;
  // All of paths that begin with `front`.
  virtual std::vector<FarUpload> uploads(const std::string& front) = 0;

  // Does nothing if there is no such object.
  virtual void remove(const std::string& path) = 0;

  // From now on files that stand for the objects (far_files.h) are these. One thread, while nobody
  // reads them.
  virtual void stand_in(const FarObject& object) = 0;
  // While `yes`, requests are made even if the run is interrupted: those that clean up.
  virtual void clean_up(bool yes) = 0;
};

// A folder of a store.
struct FarPlace {
  std::shared_ptr<FarStore> store = {};
  std::string path = {};  // in the store; "": all of it
  std::string name = {};  // what messages call the store: "s3://bucket"
};

}  // namespace dsckpt
