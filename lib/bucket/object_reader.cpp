#include "bucket/object_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/text.h"
#include "bucket/bucket_url.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr uint64_t kLongestRequest = ReadAhead::kLongestRequest;
constexpr uint32_t kNoObject = ~uint32_t{0};
// A read of this length gets requests of its own.
constexpr uint64_t kLongRead = 1 << 20;
constexpr uint64_t kBlockStep = 16 << 10;
constexpr uint64_t kFirstBlock = 16 << 10;
constexpr uint64_t kLastBlock = 32 << 10;
// A shorter object is a single block: the transfer takes no longer than the request.
constexpr uint64_t kShortObject = 192 << 10;
// Reads of this length, pickles and directories, happen once. Heads of records are read repeatedly.
constexpr uint64_t kReadOnce = 48 << 10;
constexpr uint64_t kShortestGrown = 64 << 10;
constexpr uint64_t kLongestBlock = 2 << 20;
// Half of the cache.
constexpr uint64_t kBlocksTogether = 128 << 20;

uint64_t rounded_up(uint64_t size) {
  return (size + kBlockStep - 1) / kBlockStep * kBlockStep;
}

std::string without_weakness(const std::string& etag) {
  return etag.starts_with("W/") ? etag.substr(2) : etag;
}

}  // namespace

// The cache holds the blocks of all threads that wait, so none is evicted before it is used.
ObjectReader::ObjectReader(BucketAccess access)
    : access_(std::move(access)), ahead_(*this, access_.requests, access_.buffers) {
  BlockCache::keep(access_.requests * 2 * kLongestBlock);
}

ObjectReader::Object* ObjectReader::find(const std::filesystem::path& path) const {
  const std::string key = path.lexically_normal().native().substr(1);
  const std::shared_lock lock(mutex_);
  const auto found = objects_.find(key);
  return found == objects_.end() ? nullptr : found->second.get();
}

ObjectReader::Object& ObjectReader::numbered(uint32_t object) const {
  const std::shared_lock lock(mutex_);
  return *numbered_[object];
}

std::string ObjectReader::version(const std::filesystem::path& path) const {
  const Object* const object = find(path);
  return object == nullptr ? "" : object->etag;
}

void ObjectReader::know(const FarFile& file) {
  add({file.path.lexically_normal().native().substr(1), file.version, file.size, file.modified});
}

void ObjectReader::add(const ListedObject& listed) {
  const std::lock_guard lock(mutex_);
  auto& object = objects_[listed.key];
  if (object != nullptr) return;
  object = std::make_unique<Object>();
  object->number = static_cast<uint32_t>(numbered_.size());
  numbered_.push_back(object.get());
  object->key = listed.key;
  object->etag = listed.etag;
  object->size = listed.size;
  object->modified = listed.modified;
}

void ObjectReader::replace(const ListedObject& listed) {
  Object* const known = find("/" + listed.key);
  if (known == nullptr) return add(listed);
  Object& object = *known;
  object.etag = listed.etag;
  object.size = listed.size;
  object.modified = listed.modified;
  object.blocks.clear();
  object.cache = nullptr;
}

void ObjectReader::fetch(const Object& object, uint64_t offset, std::span<std::byte> out,
                         const std::atomic<bool>* given_up) {
  HttpRequest request = request_of(access_, "/" + percent_encoded(object.key, "/"));
  request.offset = offset;
  request.into = out;
  request.given_up = given_up;
  const bool is_weak = object.etag.starts_with("W/");  // a weak tag never matches
  if (!object.etag.empty() && !is_weak) {
    request.headers.push_back("If-Match: \"" + object.etag + "\"");
  }
  const HttpReply reply = access_.client->send(request);
  if (reply.status == 416) throw changed_while_read();
  if (reply.status < 200 || reply.status >= 300) throw_status(access_, reply);
  // Not every server honours If-Match.
  if (!object.etag.empty() && !reply.etag.empty() &&
      without_weakness(reply.etag) != without_weakness(object.etag)) {
    throw changed_while_read();
  }
  const bool has_time = object.etag.empty() && object.modified != 0 && reply.modified != 0;
  if (has_time && reply.modified != object.modified / 1'000'000'000) throw changed_while_read();
  // Some servers answer 200 with only the range.
  const std::string range =
      "bytes " + std::to_string(offset) + "-" + std::to_string(offset + out.size() - 1) + "/";
  const bool is_another = !reply.content_range.empty() && !reply.content_range.starts_with(range);
  const std::string_view whole = std::string_view(reply.content_range)
                                     .substr(std::min(range.size(), reply.content_range.size()));
  if (!is_another && !whole.empty() && whole != "*" && whole != std::to_string(object.size)) {
    throw changed_while_read();
  }
  if (reply.received != out.size() || is_another) {
    throw IoError({},
                  "the server sends " + counted(reply.received, "byte") +
                      (is_another ? " of another range" : "") + " where " +
                      std::to_string(out.size()) + " were asked for",
                  0)
        .with_hint("a server or proxy that does not honour ranges cannot be read from");
  }
}

// Returns the block that holds `offset`, or makes one. An object stays cut as it was cut first, so
// that all threads agree on the blocks.
ObjectReader::BlockPlace ObjectReader::block_at(Object& object, uint64_t offset,
                                                uint64_t wanted) const {
  const std::lock_guard lock(object.mutex);
  if (object.cache == nullptr) object.cache = std::make_unique<BlockCache>();
  const auto next = object.blocks.upper_bound(offset);
  uint64_t before = 0;  // the end of the block before, and its length
  uint64_t last_size = 0;
  if (next != object.blocks.begin()) {
    const auto& [begin, size] = *std::prev(next);
    if (offset < begin + size) return {begin, size, object.cache.get()};
    before = begin + size;
    last_size = size;
  }
  const uint64_t limit = next == object.blocks.end() ? object.size : next->first;
  const size_t objects = [&] {
    const std::shared_lock known(mutex_);
    return objects_.size();
  }();
  const uint64_t longest =
      std::clamp(std::bit_floor(kBlocksTogether / std::max<uint64_t>(objects, 1)), kShortestGrown,
                 kLongestBlock);
  const uint64_t tail =
      object.size <= kShortObject ? 0 : object.size - std::min(object.size, kLastBlock);
  uint64_t begin = offset;
  uint64_t size = rounded_up(wanted);
  if (offset >= tail) {
    begin = std::max(before, tail);
    size = object.size - begin;
  } else if (offset < kBlockStep) {
    begin = 0;
    size = std::max(size, kFirstBlock);
  } else if (last_size != 0 && offset - before < kBlockStep) {
    begin = before;
    size = std::max(rounded_up(offset - begin + wanted), std::min(2 * last_size, longest));
  } else {
    begin = std::max(before, offset / kBlockStep * kBlockStep);
    size = rounded_up(offset - begin + wanted);
  }
  size = std::min(size, limit - begin);
  object.blocks.emplace(begin, size);
  return {begin, size, object.cache.get()};
}

void ObjectReader::read_at(const std::filesystem::path& path, uint64_t size, int64_t,
                           uint64_t offset, std::span<std::byte> out) {
  Object* const found = find(path);
  if (found == nullptr || found->size != size) {
    throw IoError({}, "is not the object that was listed in the bucket", 0);
  }
  Object& object = *found;
  while (!out.empty()) {
    uint64_t apart = 0;
    uint64_t some = ahead_.copy(object.number, offset, out, &apart);
    if (some == 0) {
      some = apart;
      read_some(object, offset, out.first(some));
    }
    out = out.subspan(some);
    offset += some;
  }
}

// Reads ranges that were not announced.
void ObjectReader::read_some(Object& object, uint64_t offset, std::span<std::byte> out) {
  if (out.size() >= kLongRead) {
    for (uint64_t done = 0; done < out.size();) {
      const uint64_t some = std::min<uint64_t>(kLongestRequest, out.size() - done);
      fetch(object, offset + done, out.subspan(done, some));
      done += some;
    }
    return;
  }
  while (!out.empty()) {
    const BlockPlace place = block_at(object, offset, out.size());
    const bool is_for_one_read = out.size() >= kReadOnce && place.size < out.size() + kReadOnce;
    const SharedBlock block = place.cache->get(
        place.begin,
        [&] {
          auto made = std::make_shared<CachedBlock>(place.size);
          fetch(object, place.begin, made->bytes());
          return SharedBlock(made);
        },
        is_for_one_read);
    const uint64_t skip = offset - place.begin;
    const uint64_t some = std::min<uint64_t>(place.size - skip, out.size());
    std::memcpy(out.data(), block->bytes().data() + skip, some);
    out = out.subspan(some);
    offset += some;
  }
}

std::unique_ptr<FarReadAhead> ObjectReader::read_ahead(FarSteps steps) {
  std::vector<uint32_t> numbers;
  uint64_t count = 0;
  for (const std::filesystem::path& file : steps.files) {
    const Object* const found = file.empty() ? nullptr : find(file);
    numbers.push_back(found == nullptr ? kNoObject : found->number);
    count += found == nullptr ? 0 : 1;
  }
  steps.files = {};
  steps.next = [next = std::move(steps.next), numbers = std::move(numbers)](FarStep& step) {
    if (!next(step)) return false;
    for (Extent& extent : step.extents) extent.file = numbers[extent.file];
    std::erase_if(step.extents, [](const Extent& extent) { return extent.file == kNoObject; });
    return true;
  };
  return ahead_.start(std::move(steps), count);
}

void ObjectReader::fetch(uint32_t object, uint64_t offset, std::span<std::byte> out,
                         const std::atomic<bool>& given_up) {
  fetch(numbered(object), offset, out, &given_up);
}

ObjectReader::Kept ObjectReader::kept(uint32_t number, uint64_t offset, uint64_t size) {
  Object& object = numbered(number);
  const std::lock_guard lock(object.mutex);
  auto next = object.blocks.upper_bound(offset);
  if (next != object.blocks.begin()) --next;
  for (; next != object.blocks.end() && next->first < offset + size; ++next) {
    if (next->first + next->second <= offset) continue;
    if (SharedBlock block = object.cache->find(next->first)) return {std::move(block), next->first};
  }
  return {};
}

}  // namespace dsckpt
