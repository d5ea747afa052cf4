#include "bucket/web_folder.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "base/turns.h"
#include "bucket/bucket_url.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr size_t kLongestIndex = size_t{64} << 20;
constexpr size_t kMostFiles = 1'000'000;
constexpr size_t kMostBeside = 10'000;  // the page may link to a whole site
constexpr size_t kDeepest = 32;

bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

// Replaces the character references that occur in names.
std::string without_references(std::string_view text) {
  constexpr std::pair<std::string_view, char> kNamed[] = {
      {"&amp;", '&'},  {"&lt;", '<'},    {"&gt;", '>'},  {"&quot;", '"'},
      {"&#39;", '\''}, {"&#x27;", '\''}, {"&#34;", '"'}, {"&#43;", '+'}};
  std::string out;
  while (!text.empty()) {
    const auto* const known = std::find_if(std::begin(kNamed), std::end(kNamed), [&](auto& named) {
      return text.starts_with(named.first);
    });
    out += known == std::end(kNamed) ? text.front() : known->second;
    text.remove_prefix(known == std::end(kNamed) ? 1 : known->first.size());
  }
  return out;
}

// Calls `take` with the value of each href of an <a>.
template <typename Take>
void for_each_link(std::string_view html, Take&& take) {
  while (true) {
    const size_t open = html.find('<');
    if (open == html.npos) return;
    html.remove_prefix(open + 1);
    if (html.size() < 2 || !same_letters(html.substr(0, 1), "a") ||
        std::isspace(static_cast<unsigned char>(html[1])) == 0) {
      continue;
    }
    html.remove_prefix(1);
    while (!html.empty() && html.front() != '>') {
      if (std::isspace(static_cast<unsigned char>(html.front())) != 0) {
        html.remove_prefix(1);
        continue;
      }
      const size_t end = std::min(html.find_first_of("= \t\r\n>"), html.size());
      const std::string_view name = html.substr(0, end);
      html.remove_prefix(std::max<size_t>(end, 1));
      if (end == 0 || html.empty() || html.front() != '=') continue;
      html.remove_prefix(1);
      std::string_view value;
      if (!html.empty() && (html.front() == '"' || html.front() == '\'')) {
        const size_t close = std::min(html.find(html.front(), 1), html.size());
        value = html.substr(1, close - 1);
        html.remove_prefix(std::min(close + 1, html.size()));
      } else {
        const size_t close = std::min(html.find_first_of(" \t\r\n>"), html.size());
        value = html.substr(0, close);
        html.remove_prefix(close);
      }
      if (same_letters(name, "href")) take(value);
    }
  }
}

bool is_name(const std::string& text) {
  return !text.empty() && text != "." && text != ".." && text.find('/') == text.npos &&
         text.find('\0') == text.npos;
}

// Returns the entry of the folder `path` that a link in its index names. Returns nullopt if the
// link leads elsewhere.
std::optional<WebEntry> entry_of(std::string_view link, const std::string& path) {
  std::string text = without_references(without_blanks(link));
  text.resize(std::min(text.find_first_of("?#"), text.size()));
  const size_t colon = text.find(':');
  if (colon != text.npos && colon < text.find('/')) {  // "https://host/...", "mailto:..."
    const size_t host_end =
        text.substr(colon).starts_with("://") ? text.find('/', colon + 3) : text.npos;
    if (host_end == text.npos) return std::nullopt;
    text.erase(0, host_end);
  } else if (text.starts_with("//")) {
    return std::nullopt;
  }
  try {
    text = percent_decoded(text, false);
  } catch (const CorruptError&) {
    return std::nullopt;
  }
  if (text.starts_with("./")) text.erase(0, 2);
  if (text.starts_with('/')) {
    const std::string folder = path.empty() ? "/" : "/" + path + "/";
    if (!text.starts_with(folder)) return std::nullopt;
    text.erase(0, folder.size());
  }
  WebEntry entry;
  entry.is_folder = text.ends_with('/');
  if (entry.is_folder) text.pop_back();
  if (!is_name(text)) return std::nullopt;
  entry.name = std::move(text);
  return entry;
}

void sort_by_name(std::vector<WebEntry>& entries) {
  std::sort(entries.begin(), entries.end(), [](const WebEntry& a, const WebEntry& b) {
    return std::pair(std::string_view(a.name), !a.is_folder) <
           std::pair(std::string_view(b.name), !b.is_folder);
  });
  const auto same = [](const WebEntry& a, const WebEntry& b) { return a.name == b.name; };
  entries.erase(std::unique(entries.begin(), entries.end(), same), entries.end());
}

std::vector<WebEntry> parse_json_index(std::string_view text) {
  const nlohmann::json index = parse_json(text);
  std::vector<WebEntry> entries;
  const CorruptError is_other({}, "the folder's index is JSON of an unknown form");
  if (!index.is_array()) throw is_other;
  for (const nlohmann::json& item : index) {
    if (!item.is_object() || !item.contains("name") || !item["name"].is_string()) {
      throw is_other;
    }
    WebEntry entry{.name = item["name"]};
    entry.is_folder = entry.name.ends_with('/') ||
                      (item.contains("type") && item["type"] == "directory") ||
                      (item.contains("is_dir") && item["is_dir"] == true);
    if (entry.name.ends_with('/')) entry.name.pop_back();
    if (!is_name(entry.name)) throw is_other;
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::string encoded_path(const std::string& path) {
  return "/" + percent_encoded(path, "/");
}

// Returns the index of a folder, or nullopt if there is no such folder.
std::optional<std::vector<WebEntry>> index_of(const BucketAccess& access, const std::string& path) {
  HttpRequest request = request_of(access, encoded_path(path.empty() ? "" : path + "/"));
  request.most = kLongestIndex;
  const HttpReply reply = access.client->send(request);
  if (reply.status == 404 || reply.status == 410) return std::nullopt;
  if (reply.status != 200) throw_status(access, reply);
  return parse_web_index(reply.text, path);
}

// Returns the size and time of a file, or nullopt if there is no such file.
std::optional<ListedObject> look_at(const BucketAccess& access, const std::string& path) {
  HttpRequest request = request_of(access, encoded_path(path));
  request.method = "HEAD";
  const HttpReply reply = access.client->send(request);
  // A redirect means a folder: the server adds a slash.
  const bool moved = reply.status >= 301 && reply.status <= 308;
  if (reply.status == 404 || reply.status == 410 || moved) return std::nullopt;
  const std::string name = access.name + "/" + path;
  return in_context({.file = name}, [&]() -> std::optional<ListedObject> {
    if (reply.status != 200) throw_status(access, reply);
    if (!reply.length) {
      throw IoError({}, "the server does not report its length (Content-Length)", 0)
          .with_hint("download it, and give the folder here");
    }
    return ListedObject{.key = path,
                        .etag = reply.etag,
                        .size = *reply.length,
                        .modified = reply.modified * 1'000'000'000};
  });
}

// Calls `work` with each number below `count` on `threads` threads. After an exception no further
// call begins, and the exception is thrown.
template <typename Work>
void on_threads(unsigned threads, size_t count, Work&& work) {
  Turns turns(count);
  std::exception_ptr thrown;
  std::mutex mutex;
  const auto run = [&] {
    try {
      turns.take(work);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (thrown == nullptr) thrown = std::current_exception();
    }
  };
  std::vector<std::jthread> running;
  for (size_t i = 1; i < std::min<size_t>(threads, count); ++i) running.emplace_back(run);
  run();
  running.clear();
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

}  // namespace

std::vector<WebEntry> parse_web_index(std::string_view text, const std::string& path) {
  std::vector<WebEntry> entries;
  if (without_blanks(text.substr(0, 4096)).starts_with('[')) {
    entries = parse_json_index(text);
  } else {
    for_each_link(text, [&](std::string_view link) {
      if (std::optional<WebEntry> entry = entry_of(link, path)) entries.push_back(*entry);
    });
  }
  sort_by_name(entries);
  return entries;
}

std::vector<ListedObject> list_web_folder(const BucketAccess& access, const std::string& path,
                                          bool beside) {
  std::vector<std::string> files;
  std::vector<ListedObject> found;
  struct Level {
    std::string path;
    size_t depth;
  };
  std::vector<Level> folders{{path, 0}};
  uint64_t name_bytes = 0;
  for (size_t at = 0; at < folders.size(); ++at) {
    const Level folder = folders[at];
    const std::optional<std::vector<WebEntry>> entries = index_of(access, folder.path);
    // Some servers return a file even if a slash follows its name.
    const bool may_be_file = at == 0 && !beside && !path.empty();
    if (may_be_file && (!entries || entries->empty())) files.push_back(path);
    if (!entries) continue;
    for (const WebEntry& entry : *entries) {
      std::string inside = (folder.path.empty() ? "" : folder.path + "/") + entry.name;
      count_name(name_bytes, inside);
      if (!entry.is_folder) {
        files.push_back(std::move(inside));
      } else if (beside) {
        found.push_back({.key = inside + "/"});
      } else if (folder.depth == kDeepest) {
        throw UnsupportedError({}, "has folders that lie " + std::to_string(kDeepest) + " deep")
            .with_hint("give the checkpoint's own folder");
      } else {
        folders.push_back({std::move(inside), folder.depth + 1});
      }
    }
    const size_t most = beside ? kMostBeside : kMostFiles;
    if (files.size() + folders.size() > most) {
      throw UnsupportedError({}, "has more than " + grouped_count(most, "file"))
          .with_hint("give the checkpoint's own folder");
    }
  }
  std::vector<std::optional<ListedObject>> looked(files.size());
  on_threads(access.requests, files.size(),
             [&](size_t i) { looked[i] = look_at(access, files[i]); });
  for (std::optional<ListedObject>& object : looked) {
    if (object) found.push_back(std::move(*object));
  }
  return found;
}

}  // namespace dsckpt
