// FarStore: an object store as a place for outputs.
//
// An object is made by one request, or from the parts of an upload, which are invisible until it is
// completed. Each request says which object it belongs to. There are no folders, and nothing is
// renamed. Source: Amazon S3 API Reference (PutObject, CreateMultipartUpload, UploadPart,
// CompleteMultipartUpload).
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

// An object in the store. Paths are those in the store, without a leading slash.
struct FarObject {
  std::string path = {};
  std::string etag = {};  // changes with what it holds; "" where nothing is
  uint64_t size = 0;
  int64_t modified = 0;  // nanoseconds since the epoch, by the store's clock
};

// An upload that was neither completed nor aborted.
struct FarUpload {
  std::string path = {};
  std::string id = {};
  int64_t begun = 0;  // nanoseconds since the epoch, by the store's clock
};

// The result of publishing an object under its name.
struct FarPublished {
  enum class What : uint8_t {
    done,
    refused,  // the object there is not the expected one
    // Somebody else did something with it meanwhile: an upload must be sent anew. Or it is gone, or
    // has different parts than those that were sent.
    again,
  } what = What::done;
  std::string etag = {};  // of what is there now, where it is done
};

// Any thread. Requests with transient errors are repeated (HttpClient). All methods throw IoError
// that names the object, and InterruptedError.
class FarStore {
 public:
  virtual ~FarStore() = default;
  // The most requests that may run at once.
  virtual unsigned requests() const = 0;

  // All objects whose paths begin with `front`.
  virtual std::vector<FarObject> list(const std::string& front) = 0;
  // The ETag of the object at that path; nullopt if there is none.
  virtual std::optional<std::string> find_etag(const std::string& path) = 0;
  // The same for an object that this run has made. It tells whether put() or complete() that threw
  // succeeded all the same.
  virtual std::optional<std::string> find_own(const std::string& path) = 0;
  // The name of this run, which its objects keep; and to be a part of another run from now on.
  virtual std::string run() const = 0;
  virtual void take_run(const std::string& run) = 0;
  // The content of an object, `most` bytes at most.
  virtual std::string read(const std::string& path, size_t most) = 0;

  // Makes an object with one request. `before`: the ETag of the object that it replaces; "": there
  // must be none; nullopt: it replaces any. A store without conditional requests replaces any.
  virtual FarPublished put(const std::string& path, std::span<const std::byte> bytes,
                           const std::optional<std::string>& before) = 0;

  struct Begun {
    std::string id = {};
    bool maybe_twice = false;  // a reply was lost: another one may be there
  };
  virtual Begun begin_upload(const std::string& path) = 0;
  // Sends part `number`, from 1 on, with a checksum that the store compares. Returns the part's
  // ETag. Sending the same number again replaces the part.
  virtual std::string send_part(const std::string& path, const std::string& upload, unsigned number,
                                std::span<const std::byte> bytes) = 0;
  // `parts`: the ETags of all parts in their order. `before` is as in put(). If the reply is lost,
  // or is an error in the form of a success, it asks the store which object is there.
  virtual FarPublished complete(const std::string& path, const std::string& upload,
                                std::span<const std::string> parts,
                                const std::optional<std::string>& before) = 0;
  // Does nothing if the upload no longer exists.
  virtual void abort_upload(const std::string& path, const std::string& upload) = 0;
  // All uploads whose paths begin with `front`.
  virtual std::vector<FarUpload> uploads(const std::string& front) = 0;

  // Does nothing if there is no such object.
  virtual void remove(const std::string& path) = 0;

  // Makes this object the one that its stand-in (far_files.h) represents. One thread, while nobody
  // reads the stand-ins.
  virtual void stand_in(const FarObject& object) = 0;
  // While `yes`, requests are sent even if the run is interrupted, so that it can clean up.
  virtual void clean_up(bool yes) = 0;
};

// A folder of a store.
struct FarPlace {
  std::shared_ptr<FarStore> store = {};
  std::string path = {};  // in the store; "": all of it
  std::string name = {};  // what messages call the store: "s3://bucket"
};

}  // namespace dsckpt
