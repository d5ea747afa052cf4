// dsckpt_native: Source for the Python package `dsckpt`, whose _reader.py describes its use.
//
// The module does not know torch: it returns memory as arrays of bytes with owners, which torch and
// NumPy accept by the buffer protocol. The GIL is released while files are read.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bucket/bucket_url.h"
#include "bucket/buckets.h"
#include "dsckpt/checkpoint.h"
#include "dsckpt/error.h"
#include "dsckpt/resume.h"
#include "exec/workers.h"
#include "io/far_files.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dsckpt {
namespace {

using Bytes = nb::ndarray<nb::memview, uint8_t, nb::ndim<1>, nb::c_contig>;

constexpr std::chrono::milliseconds kSignalInterval{50};
constexpr size_t kAlignment = 64;  // torch's
constexpr size_t kHugePage = size_t{2} << 20;

// Decodes names and messages, which may hold any bytes, and paths.
nb::str as_str(std::string_view text) {
  PyObject* made =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (made == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(made);
}

std::string as_string(const nb::bytes& path) {
  return {path.c_str(), path.size()};
}

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

// torch's own variable (c10/core/impl/alloc_cpu.cpp): 1 asks the kernel for huge pages.
bool wants_huge_pages() {
  const char* chosen = std::getenv("THP_MEM_ALLOC_ENABLE");
  return chosen != nullptr && std::string_view(chosen) == "1";
}

// Uninitialised memory. Huge pages are filled faster than small ones, but a virtual machine may
// have to ask its host for each, which takes longest of all. The partial last one gets small pages,
// so that no memory is wasted.
Memory allocate(size_t size) {
  static const bool huge = wants_huge_pages();
  const size_t in_huge_pages = huge ? size / kHugePage * kHugePage : 0;
  void* memory = nullptr;
  if (posix_memalign(&memory, in_huge_pages > 0 ? kHugePage : kAlignment,
                     std::max<size_t>(size, 1)) != 0) {
    throw std::bad_alloc();
  }
  if (in_huge_pages > 0) ::madvise(memory, in_huge_pages, MADV_HUGEPAGE);  // only advice
  return Memory(static_cast<std::byte*>(memory));
}

Bytes as_array(Memory memory, size_t size) {
  std::byte* data = memory.get();
  const nb::capsule owner(memory.release(),
                          [](void* owned) noexcept { Free()(static_cast<std::byte*>(owned)); });
  return Bytes(data, {size}, owner);
}

// Calls a Python function progress(done, total) unless it is None, and checks for Ctrl-C. Needs the
// GIL, in the thread that Python called.
void report(const nb::object& progress, const Progress& so_far) {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  if (!progress.is_none()) progress(so_far.bytes_done.load(), so_far.bytes_total.load());
}

// The folders of URLs (bucket/buckets.h), as long as any reader of them lives. Their settings come
// from the environment.
class FarFolders {
 public:
  FarFolders() : process_(::getpid()), buckets_(std::make_unique<Buckets>()) {}
  ~FarFolders() {
    // The threads and the folders are the parent's.
    if (process_ != ::getpid()) static_cast<void>(buckets_.release());
  }
  FarFolders(const FarFolders&) = delete;
  FarFolders& operator=(const FarFolders&) = delete;

  // Returns a path unchanged, and for a URL the folder that open() will make.
  std::string place_of(const nb::bytes& path) {
    const std::string place = as_string(path);
    return is_url(place) ? buckets_->place_of(place).string() : place;
  }
  void open() { open(true); }
  // Opens what another process has listed.
  void reach(const std::set<std::string>& sites) {
    for (const std::string& site : sites) static_cast<void>(buckets_->place_of(site));
    open(false);
  }

  void check_process() const {
    if (buckets_->is_empty() || process_ == ::getpid()) return;
    throw UsageError("files of an object store were opened before this process was forked")
        .with_hint("open it in each process, or start them with \"spawn\" or \"forkserver\"");
  }

  // Cancels all requests as long as it lives.
  class Stop {
   public:
    explicit Stop(FarFolders& folders) : folders_(folders) { ++folders_.stopping_; }
    ~Stop() { --folders_.stopping_; }
    Stop(const Stop&) = delete;
    Stop& operator=(const Stop&) = delete;

   private:
    FarFolders& folders_;
  };

 private:
  void open(bool lists) {
    if (buckets_->is_empty()) return;
    buckets_->open({.lists = lists}, ::getenv, [this] { return stopping_ > 0; });
  }

  const pid_t process_;
  std::unique_ptr<Buckets> buckets_;
  std::atomic<int> stopping_ = 0;
};

// Runs `work` in another thread without the GIL. An exception of report() stops it, and is
// rethrown.
template <typename Work>
void carry_out(FarFolders& folders, const nb::object& progress, Progress& so_far, Work&& work) {
  folders.check_process();
  std::exception_ptr stopped;
  std::optional<FarFolders::Stop> stop;
  std::future<void> done = std::async(std::launch::async, [&] { work(so_far); });
  while (true) {
    {
      const nb::gil_scoped_release release;
      if (done.wait_for(kSignalInterval) == std::future_status::ready) break;
    }
    if (stopped) continue;
    try {
      report(progress, so_far);
    } catch (...) {
      stopped = std::current_exception();
      so_far.cancelled = true;
      stop.emplace(folders);
    }
  }
  if (stopped) std::rethrow_exception(stopped);
  done.get();
  if (!progress.is_none()) report(progress, so_far);
}

template <typename Work>
void carry_out(FarFolders& folders, const nb::object& progress, Work&& work) {
  Progress so_far;
  carry_out(folders, progress, so_far, std::forward<Work>(work));
}

nb::dict facts_of(const Source& source) {
  const SourceFacts known = source.facts();
  nb::dict all;
  if (known.from_weights) return all;
  nb::dict mesh;
  mesh["pp"] = known.pp;
  mesh["tp"] = known.tp;
  mesh["dp"] = known.dp;
  mesh["ep"] = known.ep;
  all["layout"] = as_str(known.layout);
  all["zero_stage"] = known.zero_stage;
  all["tag"] = as_str(known.tag);
  all["optimizer_wrapper"] = as_str(known.optimizer_wrapper);
  all["ds_version"] = as_str(known.ds_version);
  all["global_steps"] = known.global_steps ? nb::object(nb::int_(*known.global_steps)) : nb::none();
  all["mesh"] = mesh;
  return all;
}

std::span<std::byte> memory_at(uint64_t address, int64_t count, DType dtype) {
  return {reinterpret_cast<std::byte*>(address), static_cast<size_t>(count) * size_of(dtype)};
}

class Reader {
 public:
  // Paths and URLs are encoded by os.fsencode(). `engine_tp`: the tensor-parallel ranks of the
  // engine that loads it; 0: none does. The caller keeps `folders` until it has handled
  // errors: URLs in their texts come from it.
  Reader(std::shared_ptr<FarFolders> folders, const nb::bytes& path, const std::string& tag,
         const std::string& model, const std::vector<nb::bytes>& roots,
         const std::vector<std::string>& tp_rules, bool states,
         std::vector<std::vector<std::string>> group_names, uint32_t engine_tp)
      : folders_(std::move(folders)),
        source_(opened(*folders_, *opening_, path, tag, model, roots, tp_rules, states,
                       std::move(group_names), engine_tp)),
        tensors_(source_.tensors()) {}

  // (name, state, kind, dtype, shape, alias_of, step or None) of each tensor
  nb::list tensors() const {
    nb::list all;
    for (const SourceTensor& tensor : tensors_) {
      all.append(nb::make_tuple(as_str(tensor.name), as_str(tensor.state), to_string(tensor.kind),
                                as_str(torch_name(tensor.dtype)), nb::tuple(nb::cast(tensor.shape)),
                                as_str(tensor.alias_of), tensor.step));
    }
    return all;
  }

  nb::list notes() const {
    nb::list all;
    for (const std::string& note : source_.notes()) all.append(as_str(shown_text(note)));
    return all;
  }

  // Facts about the run, with the keys of `ckpt-inspect list --json`. Empty for weights.
  nb::dict facts() const { return facts_of(source_); }

  // SourceFacts::metadata
  nb::dict metadata() const {
    nb::dict all;
    for (const auto& [key, text] : source_.facts().metadata) all[as_str(key)] = as_str(text);
    return all;
  }

  const Source& source() const { return source_; }
  const std::shared_ptr<FarFolders>& folders() const { return folders_; }
  const std::shared_ptr<Progress>& opening() const { return opening_; }

  nb::list files(size_t index) const {
    nb::list names;
    for (const std::string& name : source_.files(tensors_.at(index))) names.append(as_str(name));
    return names;
  }

  // Returns the elements [first, first + count) of the tensors with these indices, as bytes.
  using Range = std::tuple<size_t, int64_t, int64_t>;
  std::vector<Bytes> gather(const std::vector<Range>& ranges, bool check,
                            const nb::object& progress) const {
    std::vector<Memory> memory;
    std::vector<TensorRead> reads;
    for (const auto& [index, first, count] : ranges) {
      const SourceTensor& tensor = tensors_.at(index);
      if (first < 0 || count < 0 || first > numel(tensor.shape) - count) {
        throw nb::index_error("elements that the tensor does not have");
      }
      const size_t size = static_cast<size_t>(count) * size_of(tensor.dtype);
      memory.push_back(allocate(size));
      reads.push_back({&tensor, first, count, {memory.back().get(), size}});
    }
    carry_out(*folders_, progress, [&](Progress& so_far) { source_.gather(reads, check, so_far); });
    std::vector<Bytes> arrays;
    for (size_t i = 0; i < reads.size(); ++i) {
      arrays.push_back(as_array(std::move(memory[i]), reads[i].out.size()));
    }
    return arrays;
  }

  // Like gather(), but into the memory at each address.
  using Place = std::tuple<size_t, int64_t, int64_t, uint64_t>;
  void gather_into(const std::vector<Place>& places, bool check, const nb::object& progress) const {
    std::vector<TensorRead> reads;
    for (const auto& [index, first, count, address] : places) {
      const SourceTensor& tensor = tensors_.at(index);
      if (first < 0 || count < 0 || first > numel(tensor.shape) - count) {
        throw nb::index_error("elements that the tensor does not have");
      }
      reads.push_back({&tensor, first, count, memory_at(address, count, tensor.dtype)});
    }
    carry_out(*folders_, progress, [&](Progress& so_far) { source_.gather(reads, check, so_far); });
  }

  // Verifies the checksums of the records that a tensor lies in.
  void check(size_t index, const nb::object& progress) const {
    const SourceTensor& tensor = tensors_.at(index);
    carry_out(*folders_, progress, [&](Progress& so_far) { source_.check(tensor, so_far); });
  }

  // Returns a mapping of the bytes from the first to the last element, and the strides in elements.
  // Returns None unless they lie in one file in such a form.
  std::optional<std::tuple<Bytes, std::vector<int64_t>>> view(size_t index) const {
    const SourceTensor& tensor = tensors_.at(index);
    const std::optional<TensorView> view = source_.view(tensor);
    if (!view) return std::nullopt;
    int64_t last = 0;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      last += (tensor.shape[i] - 1) * view->strides[i];
    }
    using Owner = std::shared_ptr<std::byte>;
    auto owned = std::make_unique<Owner>(view->data);
    const nb::capsule owner(owned.get(),
                            [](void* data) noexcept { delete static_cast<Owner*>(data); });
    owned.release();
    const size_t size = static_cast<size_t>(last + 1) * size_of(tensor.dtype);
    return std::tuple(Bytes(view->data.get(), {size}, owner), view->strides);
  }

 private:
  static Source opened(FarFolders& folders, Progress& opening, const nb::bytes& path,
                       const std::string& tag, const std::string& model,
                       const std::vector<nb::bytes>& roots,
                       const std::vector<std::string>& tp_rules, bool states,
                       std::vector<std::vector<std::string>> group_names, uint32_t engine_tp) {
    SourceOptions options;
    options.tag = tag;
    options.model = model;
    for (const nb::bytes& root : roots) options.roots.push_back(folders.place_of(root));
    options.tp_rules = tp_rules;
    options.optimizer_states = states;
    options.group_names = std::move(group_names);
    options.slices_apart = engine_tp != 0;
    const std::string place = folders.place_of(path);
    std::optional<Source> source;
    options.progress = &opening;
    carry_out(folders, nb::none(), opening, [&](Progress&) {
      folders.open();
      with_threads(default_threads(), [&] {
        source = Source::open(place, options);
        if (engine_tp == 0 || source->facts().tp == engine_tp) return;
        options.slices_apart = false;
        options.cut_anew = true;
        source = Source::open(place, options);
      });
    });
    return std::move(*source);
  }

  std::shared_ptr<FarFolders> folders_;
  // Plans of the source count the files that they open.
  std::shared_ptr<Progress> opening_ = std::make_shared<Progress>();
  Source source_;
  std::vector<SourceTensor> tensors_;
};

// (name, kind, dtype, shape, alias_of, ep)
using EngineEntry =
    std::tuple<std::string, std::string, std::string, std::vector<int64_t>, std::string, uint32_t>;

ParamKind kind_called(const std::string& name) {
  for (const ParamKind kind : {ParamKind::trainable, ParamKind::frozen, ParamKind::buffer}) {
    if (name == to_string(kind)) return kind;
  }
  throw nb::value_error("no kind of a parameter");
}

DType dtype_called(const std::string& name) {
  for (size_t i = 0; i < kDTypeCount; ++i) {
    if (torch_name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  throw UnsupportedError({}, "the engine has a tensor of type " + name);
}

// `known` has the fields of EngineFacts by name, except tensors, groups and settings.
EngineFacts engine_facts(const nb::dict& known, const std::vector<EngineEntry>& tensors,
                         std::vector<std::vector<std::string>> groups, const nb::bytes& settings) {
  EngineFacts engine{.dp = nb::cast<uint32_t>(known["dp"]),
                     .stages = nb::cast<std::vector<uint32_t>>(known["stages"]),
                     .tp = nb::cast<uint32_t>(known["tp"]),
                     .mp_rank = nb::cast<uint32_t>(known["mp_rank"]),
                     .stage = nb::cast<int>(known["stage"]),
                     .wrapper = nb::cast<std::string>(known["wrapper"]),
                     .precision = nb::cast<std::string>(known["precision"]),
                     .ds_version = nb::cast<std::string>(known["ds_version"]),
                     .ds_config = nb::cast<std::string>(known["ds_config"]),
                     .round_robin = nb::cast<bool>(known["round_robin"]),
                     .parameter_alignment = nb::cast<bool>(known["parameter_alignment"]),
                     .sub_group_size = nb::cast<uint64_t>(known["sub_group_size"]),
                     .tensors = {},
                     .groups = std::move(groups),
                     .settings = as_string(settings),
                     .universal_info = as_string(nb::cast<nb::bytes>(known["universal_info"])),
                     .strict = nb::cast<bool>(known["strict"])};
  for (const auto& [name, kind, dtype, shape, alias_of, ep] : tensors) {
    engine.tensors.push_back({.name = name,
                              .kind = kind_called(kind),
                              .dtype = dtype_called(dtype),
                              .shape = Shape(shape.begin(), shape.end()),
                              .alias_of = alias_of,
                              .ep = ep});
  }
  return engine;
}

// The tensors that a rank of a running engine loads.
class Resume {
 public:
  Resume(std::shared_ptr<FarFolders> folders, ResumePlan plan)
      : folders_(std::move(folders)), plan_(std::move(plan)) {}
  // Those that every data-parallel rank loads of weights.
  static Resume of_weights(const Reader& reader, const nb::dict& engine,
                           const std::vector<EngineEntry>& tensors,
                           std::vector<std::vector<std::string>> groups,
                           const nb::bytes& settings) {
    return {reader.folders(),
            plan_weights_alone(reader.source(),
                               engine_facts(engine, tensors, std::move(groups), settings))};
  }
  // Takes what encode() gave in another process.
  static Resume decode(std::shared_ptr<FarFolders> folders, const nb::bytes& bytes) {
    ResumePlan plan = ResumePlan::decode({bytes.c_str(), bytes.size()});
    folders->reach(plan.sites());
    return {std::move(folders), std::move(plan)};
  }
  nb::bytes encode() const {
    std::string bytes;
    {
      const nb::gil_scoped_release release;
      bytes = plan_.encode();
    }
    return nb::bytes(bytes.data(), bytes.size());
  }

  bool is_of_weights() const { return plan_.is_of_weights(); }
  // (data.pkl, [(dtype, elements) of each storage]) of each file
  nb::list files() const {
    nb::list all;
    for (const ResumeFile& file : plan_.files()) {
      nb::list storages;
      for (const ResumeFile::Storage& storage : file.storages) {
        storages.append(nb::make_tuple(as_str(torch_name(storage.dtype)), storage.numel));
      }
      all.append(nb::make_tuple(nb::bytes(file.pickle.data(), file.pickle.size()), storages));
    }
    return all;
  }

  nb::list notes() const {
    nb::list all;
    for (const std::string& note : plan_.notes()) all.append(as_str(shown_text(note)));
    return all;
  }

  bool weights_are_masters() const { return plan_.weights_are_masters(); }
  nb::str folder() const { return as_str(shown_text(plan_.folder())); }

  // (file, storage)
  void open_files(const std::vector<std::tuple<size_t, size_t>>& storages) const {
    std::vector<StorageRead> reads;
    for (const auto& [file, storage] : storages) reads.push_back({file, storage});
    const nb::gil_scoped_release release;
    plan_.open_files(reads);
  }
  // Reads the elements [first, first + count) of storages of files into the memory at each address.
  using Place = std::tuple<size_t, size_t, int64_t, int64_t, uint64_t>;
  void gather_into(const std::vector<Place>& places, bool check, const nb::object& progress) const {
    std::vector<StorageRead> reads;
    for (const auto& [file, storage, first, count, address] : places) {
      const DType dtype = plan_.files().at(file).storages.at(storage).dtype;
      reads.push_back({file, storage, first, count, memory_at(address, count, dtype)});
    }
    carry_out(*folders_, progress, [&](Progress& so_far) { plan_.gather(reads, check, so_far); });
  }

 private:
  std::shared_ptr<FarFolders> folders_;
  ResumePlan plan_;
};

// Those of all ranks, from a Reader with states.
class Plans {
 public:
  // The facts are as engine_facts() takes them.
  Plans(const Reader& reader, const nb::dict& engine, const std::vector<EngineEntry>& tensors,
        std::vector<std::vector<std::string>> groups, const nb::bytes& settings)
      : folders_(reader.folders()),
        opening_(reader.opening()),
        plans_(planned(reader, engine_facts(engine, tensors, std::move(groups), settings))) {}

  Resume of_rank(uint32_t rank) const {
    const nb::gil_scoped_release release;
    return {folders_, plans_.of_rank(rank)};
  }

 private:
  static ResumePlans planned(const Reader& reader, const EngineFacts& engine) {
    std::optional<ResumePlans> plans;
    carry_out(*reader.folders(), nb::none(), *reader.opening(), [&](Progress&) {
      with_threads(default_threads(), [&] { plans.emplace(reader.source(), engine); });
    });
    return std::move(*plans);
  }

  std::shared_ptr<FarFolders> folders_;
  std::shared_ptr<Progress> opening_;
  ResumePlans plans_;
};

// Raises dsckpt.Error of the same kind and place.
void raise(const Error& error) {
  if (error.kind() == ErrorKind::interrupted) {
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    return;
  }
  const auto text = [](const std::string& value) -> nb::object {
    return value.empty() ? nb::none() : nb::object(as_str(shown_text(value)));
  };
  const Where& where = error.where();
  const nb::object offset = where.offset ? nb::object(nb::int_(*where.offset)) : nb::none();
  nb::module_::import_("dsckpt._errors")
      .attr("raise_native")(to_string(error.kind()), as_str(shown_text(error.what())),
                            text(where.file), text(where.member), text(where.tensor), offset,
                            text(error.hint()), error.errno_value());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    try {
      raise(error);
    } catch (nb::python_error& raised) {
      raised.restore();
    }
  }
}

}  // namespace
}  // namespace dsckpt

NB_MODULE(dsckpt_native, module) {
  using dsckpt::EngineEntry;
  using dsckpt::FarFolders;
  using dsckpt::Plans;
  using dsckpt::Reader;
  using dsckpt::Resume;
  // Worker processes of data loaders keep their Reader until they end.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(dsckpt::translate);
  module.attr("INTERFACE") = 10;  // as in dsckpt/_reader.py; increased when anything below changes
  module.attr("READS_URLS") = DSCKPT_READS_URLS;
  nb::class_<FarFolders>(module, "FarFolders").def(nb::init<>());
  nb::class_<Reader>(module, "Reader")
      .def(nb::init<std::shared_ptr<FarFolders>, const nb::bytes&, const std::string&,
                    const std::string&, const std::vector<nb::bytes>&,
                    const std::vector<std::string>&, bool, std::vector<std::vector<std::string>>,
                    uint32_t>(),
           "folders"_a, "path"_a, "tag"_a, "model"_a, "roots"_a, "tp_rules"_a, "states"_a,
           "group_names"_a, "engine_tp"_a)
      .def("tensors", &Reader::tensors)
      .def("notes", &Reader::notes)
      .def("facts", &Reader::facts)
      .def("metadata", &Reader::metadata)
      .def("files", &Reader::files, "index"_a)
      .def("gather", &Reader::gather, "ranges"_a, "check"_a, "progress"_a.none())
      .def("gather_into", &Reader::gather_into, "places"_a, "check"_a, "progress"_a.none())
      .def("check", &Reader::check, "index"_a, "progress"_a.none())
      .def("view", &Reader::view, "index"_a);
  nb::class_<Plans>(module, "Plans")
      .def(nb::init<const Reader&, const nb::dict&, const std::vector<EngineEntry>&,
                    std::vector<std::vector<std::string>>, const nb::bytes&>(),
           "reader"_a, "engine"_a, "tensors"_a, "groups"_a, "settings"_a)
      .def("of_rank", &Plans::of_rank, "rank"_a);
  nb::class_<Resume>(module, "Resume")
      .def_static("of_weights", &Resume::of_weights, "reader"_a, "engine"_a, "tensors"_a,
                  "groups"_a, "settings"_a)
      .def_static("decode", &Resume::decode, "folders"_a, "bytes"_a)
      .def("encode", &Resume::encode)
      .def("is_of_weights", &Resume::is_of_weights)
      .def("files", &Resume::files)
      .def("notes", &Resume::notes)
      .def("weights_are_masters", &Resume::weights_are_masters)
      .def("folder", &Resume::folder)
      .def("open_files", &Resume::open_files, "storages"_a)
      .def("gather_into", &Resume::gather_into, "places"_a, "check"_a, "progress"_a.none());
}
