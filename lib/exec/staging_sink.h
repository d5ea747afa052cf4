// StagingSink: receives the outputs of a portion, and knows what the commit needs of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/sink.h"

namespace dsckpt {

// A part of an upload to an object store (far_parts.h), which is there.
struct SentPart {
  OutputId out = 0;
  uint64_t number = 0;  // from 0
  uint64_t size = 0;
  uint32_t crc = 0;
  std::string etag = {};

  static void fields(auto& codec, auto& self) {
    codec(self.out, self.number, self.size, self.crc, self.etag);
  }
};

// Bytes of a part that lacks others. They wait in a file for the commit.
struct LeftBytes {
  OutputId out = 0;
  uint64_t offset = 0;  // in the output
  uint64_t size = 0;
  uint32_t crc = 0;

  static void fields(auto& codec, auto& self) { codec(self.out, self.offset, self.size, self.crc); }
};

struct SentWork {
  std::vector<SentPart> sent = {};
  std::string left_in = {};          // a file in StagingPlace::files_in; "": nothing is left
  std::vector<LeftBytes> left = {};  // in the order of that file

  static void fields(auto& codec, auto& self) { codec(self.sent, self.left_in, self.left); }
};

class StagingSink : public Sink {
 public:
  // Call it once, after the last write. Throws IoError.
  virtual SentWork end() = 0;
};

// The outputs of a plan in an object store, as all its processes know them.
struct FarStaging {
  uint64_t part_bytes = 0;  // FarParts::Cut; 0: the outputs are files
  std::string run = {};     // FarStore::run()
  std::string marker = {};  // the path of the FarMarker
  int64_t since = 0;        // FarMarker::since()
  struct Object {
    std::string path = {};    // in the store
    std::string upload = {};  // "": not begun, or held
    bool is_held = false;     // sent in one request, by the commit

    static void fields(auto& codec, auto& self) { codec(self.path, self.upload, self.is_held); }
  };
  std::vector<Object> objects = {};  // by output

  static void fields(auto& codec, auto& self) {
    codec(self.part_bytes, self.run, self.marker, self.since, self.objects);
  }
};

}  // namespace dsckpt
