// ObjectWriter: the objects of one bucket, as a FarStore.
//
// Requests have a Content-MD5, which servers compare. Objects and uploads have the run's id
// (x-amz-meta-dsckpt-run), so a run recognises its own after a reply was lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bucket/bucket_access.h"
#include "io/far_store.h"

namespace dsckpt {

class ObjectWriter : public FarStore {
 public:
  // `stand_in`: FarStore::stand_in().
  ObjectWriter(BucketAccess access, std::function<void(const FarObject&)> stand_in);

  unsigned requests() const override { return access_.requests; }
  std::vector<FarObject> list(const std::string& front) override;
  std::optional<std::string> find_etag(const std::string& path) override;
  std::optional<std::string> find_own(const std::string& path) override;
  std::string run() const override { return run_; }
  void take_run(const std::string& run) override { run_ = run; }
  std::string read(const std::string& path, size_t most) override;
  FarPublished put(const std::string& path, std::span<const std::byte> bytes,
                   const std::optional<std::string>& before) override;
  Begun begin_upload(const std::string& path) override;
  std::string send_part(const std::string& path, const std::string& upload, unsigned number,
                        std::span<const std::byte> bytes) override;
  FarPublished complete(const std::string& path, const std::string& upload,
                        std::span<const std::string> parts,
                        const std::optional<std::string>& before) override;
  void abort_upload(const std::string& path, const std::string& upload) override;
  std::vector<FarUpload> uploads(const std::string& front) override;
  void remove(const std::string& path) override;
  void stand_in(const FarObject& object) override { stand_in_(object); }
  void clean_up(bool yes) override { cleans_up_ = yes; }

 private:
  HttpRequest request(const char* method, const std::string& path,
                      const std::string& query = "") const;
  FarPublished publish(const std::string& path, HttpRequest request,
                       const std::optional<std::string>& before) const;
  // The ETag of the object, if this run has made it.
  std::optional<std::string> ours(const std::string& path) const;
  // The ETag of an object that was made of parts. `completed` is the ETag in the reply to the
  // completion.
  std::string etag_of_whole(const std::string& path, std::string completed) const;

  const BucketAccess access_;
  const std::function<void(const FarObject&)> stand_in_;
  std::string run_;
  std::atomic<bool> cleans_up_{false};
  mutable std::atomic<bool> completes_with_etags_{false};  // of objects, and not of uploads
};

}  // namespace dsckpt
