#include "inspect/global_classes.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/keyed_hash.h"
#include "pickle/nodes.h"

namespace dsckpt {
namespace {

// A module and names in it, with spaces between them.
struct Names {
  std::string_view module;
  std::string_view names;
};

// What checkpoints do with a name, of enum pickle::Use. Anything else is not harmless.
using Uses = unsigned;
constexpr Uses kValue = pickle::kNamed;
constexpr Uses kCall = pickle::kCalled;
// What a pickle names, other things in it can call without a trace, with whatever there is: so only
// what does no harm then may be named.
constexpr Uses kFunction = pickle::kNamed | pickle::kCalled;
constexpr Uses kType = pickle::kNamed | pickle::kCalled | pickle::kMade;
constexpr Uses kClass = kType | pickle::kBuilt;
// Objects of classes whose __init__ or __post_init__ reads files, the environment or a network.
// Pickles do not call these: __new__ makes an empty object, and its attributes are put into it.
constexpr Uses kState = pickle::kMade | pickle::kBuilt;
constexpr std::string_view kNothing = "";
constexpr std::string_view kMember = "n";  // of an enum, by its value
constexpr std::string_view kAnything = "*";

struct Harmless {
  std::string_view module;
  std::string_view names;
  Uses uses;
  // What it is called with: a letter for each argument, from accepts(). Those behind ? may be left
  // out, and behind * comes anything.
  std::string_view arguments = kAnything;
};

// Classes whose members are all they have.
constexpr Names kEnums[] = {
    {"accelerate.utils.dataclasses",
     "ComputeEnvironment CustomDtype DDPCommunicationHookType DistributedType DynamoBackend "
     "FP8BackendType LoggerType PrecisionType RNGType SageMakerDistributedType"},
    {"deepspeed.runtime.config", "DeepSpeedConfigDType DtypeEnum"},
    {"deepspeed.runtime.config_utils", "DtypeEnum"},
    {"deepspeed.runtime.zero.config", "ZeroStageEnum"},
    {"deepspeed.runtime.zero.offload_config", "OffloadDeviceEnum OffloadStateTypeEnum"},
    {"megatron.core.enums", "Fp8Recipe ModelType"},
    {"megatron.core.rerun_state_machine", "RerunDiagnostic RerunMode RerunState"},
    {"megatron.core.transformer.enums",
     "AttnBackend AttnMaskType AttnType CudaGraphScope LayerType ModelType"},
    {"megatron.model.enums", "AttnMaskType AttnType LayerType ModelType PositionEmbeddingType"},
    {"peft.utils.peft_types", "PeftType TaskType"},
    {"signal", "Signals"},
    {"torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"},
    {"torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"},
    {"torch.distributed.fsdp.api", "BackwardPrefetch ShardingStrategy StateDictType"},
    {"torch.nn.attention", "SDPBackend"},
    {"transformers.debug_utils", "DebugOption"},
    {"transformers.trainer_utils",
     "EvaluationStrategy FSDPOption HubStrategy IntervalStrategy SaveStrategy SchedulerType "
     "ShardedDDPOption"},
    {"transformers.training_args", "OptimizerNames ParallelMode"},
    {"transformers.utils.generic", "PaddingStrategy TensorType"},
    {"uuid", "SafeUUID"},
};
// What getattr could take of them that is no member: methods of str, int and the classes
// themselves.
constexpr std::string_view kNoMembers =
    "as_integer_ratio bit_count bit_length capitalize casefold center conjugate count encode "
    "endswith expandtabs find format format_map from_bytes index isalnum isalpha isascii isdecimal "
    "isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower "
    "lstrip maketrans mro partition removeprefix removesuffix replace rfind rindex rjust "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title to_bytes translate "
    "upper zfill";

constexpr Harmless kHarmless[] = {
    {"_codecs", "encode", kCall, "xe"},
    {"accelerate.parallelism_config", "ParallelismConfig", kState, kNothing},
    {"accelerate.state", "AcceleratorState GradientState PartialState", kState, kNothing},
    {"accelerate.utils.dataclasses",
     "DataLoaderConfiguration DeepSpeedPlugin FullyShardedDataParallelPlugin "
     "GradientAccumulationPlugin ProjectConfiguration TorchDynamoPlugin",
     kState, kNothing},
    {"argparse", "Namespace", kClass},
    {"builtins",
     "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple",
     kType},
    {"builtins", "Ellipsis NotImplemented", kValue},
    {"collections", "ChainMap Counter OrderedDict UserDict UserList deque", kClass},
    {"collections", "defaultdict", kClass, "?gv"},
    {"copyreg", "__newobj__ __newobj_ex__", kCall, "g*"},
    {"copyreg", "_reconstructor", kCall, "ggv"},
    {"datetime", "date datetime time timedelta timezone", kType},
    {"decimal", "Decimal", kType},
    {"deepspeed.checkpoint.universal_checkpoint", "SubparamShape", kState, kNothing},
    {"deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler LossScaler LossScalerBase", kState,
     kNothing},
    {"deepspeed.utils.tensor_fragment", "fragment_address", kState, kNothing},
    {"fractions", "Fraction", kType},
    {"lightning.fabric.utilities.data", "AttributeDict", kClass},
    {"lightning.pytorch.utilities.parsing", "AttributeDict", kClass},
    {"lightning_fabric.utilities.data", "AttributeDict", kClass},
    {"numpy",
     "bool bool_ bytes_ complex128 complex64 datetime64 float16 float32 float64 int16 int32 int64 "
     "int8 longdouble str_ timedelta64 uint16 uint32 uint64 uint8",
     kType},
    {"numpy", "dtype ndarray", kClass},
    {"numpy._core.multiarray", "_reconstruct", kCall | pickle::kBuilt, "gnn"},
    {"numpy._core.multiarray", "scalar", kCall, "d?n"},
    {"numpy._core.numeric", "_frombuffer", kCall, "vdnn"},
    {"numpy.core.multiarray", "_reconstruct", kCall | pickle::kBuilt, "gnn"},
    {"numpy.core.multiarray", "scalar", kCall, "d?n"},
    {"numpy.core.numeric", "_frombuffer", kCall, "vdnn"},
    {"numpy.dtypes",
     "BoolDType Complex128DType Complex64DType Float16DType Float32DType Float64DType Int16DType "
     "Int32DType Int64DType Int8DType UInt16DType UInt32DType UInt64DType UInt8DType",
     kClass},
    {"numpy.random._mt19937", "MT19937", kClass},
    {"numpy.random._pcg64", "PCG64 PCG64DXSM", kClass},
    {"numpy.random._philox", "Philox", kClass},
    {"numpy.random._pickle", "__bit_generator_ctor __generator_ctor __randomstate_ctor",
     kFunction | pickle::kBuilt, "?rr"},
    {"numpy.random._sfc64", "SFC64", kClass},
    {"numpy.random.bit_generator", "SeedSequence", kClass},
    {"numpy.random.bit_generator", "__pyx_unpickle_SeedSequence", kCall | pickle::kBuilt, "rnv"},
    {"pathlib", "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath", kType},
    {"pathlib._local", "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath", kType},
    {"peft.tuners.lora.config", "LoraConfig LoraRuntimeConfig", kState, kNothing},
    {"pytorch_lightning.utilities.parsing", "AttributeDict", kClass},
    // By Python 3.5 to 3.11.3, which pickle members of what enum converted from constants by their
    // names.
    {"signal",
     "SIGABRT SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGIOT "
     "SIGKILL SIGPIPE SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMIN SIGSEGV SIGSTKFLT SIGSTOP "
     "SIGSYS SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH "
     "SIGXCPU SIGXFSZ",
     kValue},
    {"torch",
     "BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage "
     "DoubleStorage FloatStorage HalfStorage IntStorage LongStorage QInt32Storage QInt8Storage "
     "QUInt2x4Storage QUInt4x2Storage QUInt8Storage ShortStorage Size UntypedStorage finfo iinfo",
     kType},
    {"torch", "Generator Tensor", kClass},
    {"torch", "device", kType, "n?n"},
    {"torch",
     "bfloat16 bits16 bits1x8 bits2x4 bits4x2 bits8 bool channels_last channels_last_3d complex128 "
     "complex32 complex64 contiguous_format float16 float32 float4_e2m1fn_x2 float64 float8_e4m3fn "
     "float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu int1 int16 int2 int3 int32 int4 "
     "int5 int6 int64 int7 int8 per_channel_affine per_channel_affine_float_qparams "
     "per_channel_symmetric per_tensor_affine per_tensor_symmetric preserve_format qint32 qint8 "
     "quint2x4 quint4x2 quint8 sparse_bsc sparse_bsr sparse_coo sparse_csc sparse_csr strided "
     "uint1 uint16 uint2 uint3 uint32 uint4 uint5 uint6 uint64 uint7 uint8",
     kValue},
    {"torch._C", "Generator", kClass},
    // They call what they are given first with the tuple of arguments that they are given third.
    {"torch._tensor", "_rebuild_from_type_v2", kCall, "fgvv"},
    {"torch._utils", "_rebuild_tensor", kFunction, "snnn"},
    {"torch._utils", "_rebuild_tensor_v2", kFunction, "snnnnv?v"},
    {"torch._utils", "_rebuild_tensor_v3", kFunction, "snnnnvd?v"},
    {"torch._utils", "_rebuild_parameter", kFunction, "tnv"},
    {"torch._utils", "_rebuild_parameter_with_state", kFunction, "tnvv"},
    {"torch._utils", "_rebuild_qtensor", kFunction, "snnndnv"},
    {"torch._utils", "_rebuild_sparse_tensor _rebuild_sparse_csr_tensor", kFunction, "dt"},
    {"torch._utils", "_rebuild_nested_tensor", kFunction, "tttt"},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", kFunction, "dnnn"},
    {"torch._utils", "_rebuild_wrapper_subclass", kFunction, "gdnnnddn"},
    {"torch._utils",
     "_rebuild_device_tensor_from_cpu_tensor _rebuild_device_tensor_from_numpy "
     "_rebuild_xla_tensor",
     kFunction, "tddn"},
    {"torch.distributed._shard.metadata", "ShardMetadata", kClass},
    {"torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata TensorProperties",
     kClass},
    {"torch.distributed._tensor.api", "DTensor", kClass},
    {"torch.distributed._tensor.placement_types",
     "DTensorSpec Partial Replicate Shard TensorMeta _Partial", kClass},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo _StoragePrefix", kClass},
    {"torch.distributed.checkpoint.metadata",
     "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta "
     "TensorProperties TensorStorageMetadata",
     kClass},
    {"torch.distributed.device_mesh", "DeviceMesh", kState, kNothing},
    {"torch.distributed.tensor", "DTensor", kClass},
    {"torch.distributed.tensor._dtensor_spec", "DTensorSpec TensorMeta", kClass},
    {"torch.distributed.tensor.placement_types", "Partial Replicate Shard _StridedShard", kClass},
    {"torch.jit._pickle", "build_boollist build_doublelist build_intlist build_tensorlist", kCall,
     "v"},
    {"torch.jit._pickle", "restore_type_tag", kCall, "vn"},
    {"torch.nn", "Parameter", kClass},
    {"torch.nn.parameter", "Buffer Parameter UninitializedBuffer UninitializedParameter", kClass},
    {"torch.serialization", "_get_layout", kCall, "n"},
    {"torch.storage", "TypedStorage UntypedStorage _TypedStorage _UntypedStorage", kType},
    {"torch.torch_version", "TorchVersion", kClass},
    {"transformers.generation.configuration_utils", "GenerationConfig", kState, kNothing},
    {"transformers.integrations.deepspeed", "HfDeepSpeedConfig HfTrainerDeepSpeedConfig", kState,
     kNothing},
    {"transformers.trainer_pt_utils", "AcceleratorConfig", kState, kNothing},
    {"transformers.training_args", "TrainingArguments", kState, kNothing},
    {"transformers.training_args_seq2seq", "Seq2SeqTrainingArguments", kState, kNothing},
    {"trl.trainer.dpo_config", "DPOConfig", kState, kNothing},
    {"trl.trainer.grpo_config", "GRPOConfig", kState, kNothing},
    {"trl.trainer.kto_config", "KTOConfig", kState, kNothing},
    {"trl.trainer.ppo_config", "PPOConfig", kState, kNothing},
    {"trl.trainer.reward_config", "RewardConfig", kState, kNothing},
    {"trl.trainer.sft_config", "SFTConfig", kState, kNothing},
    {"types", "SimpleNamespace", kClass},
    {"uuid", "UUID", kClass},
};

// Modules, with all that is in and below them. Python's own first: what starts processes and
// threads, runs or compiles code, imports, loads pickles, opens files and connections, calls what
// it is given, or shows the inside of the interpreter; then those of others.
constexpr std::string_view kDangerousModules =
    "__main__ _aix_support _asyncio _bootsubprocess _ctypes _frozen_importlib "
    "_frozen_importlib_external _functools _imp _interpreters _io _multiprocessing _operator "
    "_osx_support _pickle _posixshmem _posixsubprocess _py _pyio _pyrepl _signal _sitebuiltins "
    "_socket _sqlite3 _ssl _testcapi _testinternalcapi _thread _winapi _xxsubinterpreters "
    "antigravity asyncio asyncore asynchat atexit bdb builtins bz2 cProfile cgi cgitb cmd code "
    "codecs codeop compileall concurrent configparser contextlib crypt ctypes curses dbm "
    "distutils doctest ensurepip faulthandler fcntl filecmp fileinput ftplib functools gc "
    "getpass glob gzip http idlelib imaplib imp importlib inspect io lib2to3 linecache logging "
    "lzma mailbox mailcap marshal mimetypes mmap modulefinder multiprocessing netrc nntplib nt "
    "operator os pdb pickle pickletools pipes pkgutil platform plistlib poplib popen2 posix "
    "posixfile profile pstats pty py_compile pyclbr pydoc pydoc_data readline rlcompleter runpy "
    "select selectors shelve shlex shutil signal site sitecustomize smtpd smtplib socket "
    "socketserver sqlite3 ssl subprocess sys sysconfig syslog tarfile telnetlib tempfile test "
    "this threading timeit tkinter tokenize trace tty turtle turtledemo types unittest urllib "
    "usercustomize venv warnings webbrowser winreg wsgiref xml xmlrpc zipapp zipfile zipimport "
    "accelerate.commands aiohttp boto3 botocore celery cffi click cloudpickle commands cPickle "
    "cython dask deepspeed.launcher deepspeed.ops.op_builder dill docker execnet fabric "
    "fickling fsspec git httplib2 httpx huggingface_hub invoke ipykernel IPython jinja2 joblib "
    "jsonpickle llvmlite matplotlib.cbook modelscan nose numba numexpr numpy.ctypeslib "
    "numpy.distutils numpy.f2py numpy.testing pandas.eval paramiko pexpect pickle5 picklescan "
    "pip pipenv pkg_resources plumbum psutil ptyprocess pudb py pyarrow.serialization Pyro4 "
    "Pyro5 pytest ray requests rpyc ruamel sagemaker setuptools sh six "
    "tensorflow.python.platform torch._C._jit_pass torch._dynamo torch._inductor "
    "torch.cuda.jiterator torch.distributed.elastic torch.distributed.launch "
    "torch.distributed.rpc torch.distributed.run torch.export torch.fx torch.hub torch.jit "
    "torch.multiprocessing torch.onnx torch.ops torch.package torch.testing "
    "torch.utils._config_module torch.utils.bottleneck torch.utils.collect_env "
    "torch.utils.cpp_extension torch.utils.data.datapipes torch.utils.hipify "
    "torch.utils.model_dump torch.utils.model_zoo torch.utils.tensorboard transformers.commands "
    "transformers.dynamic_module_utils twisted urllib3 virtualenv wheel yaml";

// In modules that are not dangerous as a whole.
constexpr Names kDangerousNames[] = {
    {"copyreg", "add_extension constructor dispatch_table pickle remove_extension"},
    {"dataclasses", "_create_fn _set_new_attribute make_dataclass"},
    {"deepspeed", "init_inference initialize"},
    {"itertools", "accumulate dropwhile filterfalse groupby starmap takewhile"},
    {"numpy", "DataSource fromfile fromregex genfromtxt load loadtxt memmap save savetxt savez"},
    {"numpy.lib._npyio_impl", "load loadtxt genfromtxt fromregex DataSource NpzFile"},
    {"numpy.lib.npyio", "load loadtxt genfromtxt fromregex DataSource NpzFile"},
    {"numpy.lib.format", "read_array open_memmap"},
    {"optparse", "Values.read_file Values.read_module"},
    {"pandas", "eval read_pickle read_csv read_hdf read_sql"},
    {"pandas.io.pickle", "read_pickle to_pickle"},
    {"torch", "compile load save classes ops hub jit from_file"},
    {"torch._tensor", "_rebuild_from_type_v2"},
    {"torch._utils", "_import_dotted_name _get_async_or_non_blocking"},
    {"torch.serialization", "load _load _legacy_load save _save _open_file _open_file_like"},
    {"torch.storage", "_load_from_bytes"},
    {"typing", "ForwardRef._evaluate get_type_hints"},
    {"typing_extensions", "get_type_hints"},
    {"uuid", "_get_command_stdout _popen _load_system_functions getnode uuid1"},
};

// Modules that are dangerous inside other packages too.
constexpr std::string_view kDangerousAnywhere =
    "__builtin__ builtins ctypes importlib nt os pickle posix pty runpy shutil socket subprocess "
    "sys";

// Modules that are dangerous where they are reached as an attribute of another.
constexpr std::string_view kReachable =
    "__builtin__ __builtins__ _io _posixsubprocess asyncio builtins code codecs ctypes functools "
    "importlib inspect io marshal multiprocessing nt operator os pdb pickle pkgutil platform posix "
    "pty runpy shutil socket subprocess sys tempfile threading timeit types urllib warnings "
    "webbrowser zipimport";

// Functions that run what they are given, wherever they are imported to.
constexpr std::string_view kReachableFunctions =
    "Popen __import__ attrgetter check_call check_output eval exec execfile execv execve "
    "find_class getattr getoutput getstatusoutput import_module methodcaller popen resolve_name "
    "run_module run_path spawn spawnl spawnv startfile system";

bool contains(std::string_view words, std::string_view word) {
  if (word.empty() || word.find(' ') != std::string_view::npos) return false;
  for (size_t at = words.find(word); at != std::string_view::npos; at = words.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' '))
      return true;
  }
  return false;
}

template <size_t N>
bool lists(const Names (&table)[N], std::string_view module, std::string_view name) {
  return std::any_of(std::begin(table), std::end(table), [&](const Names& row) {
    return row.module == module && contains(row.names, name);
  });
}

// By the module or one that it is in.
bool is_in_dangerous_module(std::string_view module) {
  for (size_t dot = module.find('.');; dot = module.find('.', dot + 1)) {
    if (contains(kDangerousModules, module.substr(0, dot))) return true;
    if (dot == std::string_view::npos) return false;
  }
}

// Calls `visit` with each part between the dots.
template <typename Visit>
bool any_part(std::string_view dotted, Visit&& visit) {
  for (;;) {
    const size_t dot = dotted.find('.');
    if (visit(dotted.substr(0, dot))) return true;
    if (dot == std::string_view::npos) return false;
    dotted.remove_prefix(dot + 1);
  }
}

// True for a way through attributes to what a module or class imported or is made of.
bool reaches_danger(std::string_view module, std::string_view name) {
  const auto is_dangerous = [](std::string_view part) {
    return contains(kDangerousAnywhere, part);
  };
  const auto is_reachable = [](std::string_view part) { return contains(kReachable, part); };
  const auto is_inside = [](std::string_view part) {
    return part.size() > 4 && part.starts_with("__") && part.ends_with("__");
  };
  const size_t dot = name.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? name : name.substr(dot + 1);
  return any_part(module, is_dangerous) || any_part(name, is_reachable) ||
         any_part(name, is_inside) || contains(kReachableFunctions, last);
}

// In builtins what begins with a capital letter is an exception or a constant.
bool is_exception(std::string_view module, std::string_view name) {
  return module == "builtins" && !name.empty() && name[0] >= 'A' && name[0] <= 'Z' &&
         name.find('.') == std::string_view::npos;
}

// The row of a name; nullptr if it is not harmless.
const Harmless* harmless(std::string_view module, std::string_view name) {
  const auto row = std::find_if(
      std::begin(kHarmless), std::end(kHarmless),
      [&](const Harmless& entry) { return entry.module == module && contains(entry.names, name); });
  if (row != std::end(kHarmless)) return row;
  static constexpr Harmless kAnEnum{"", "", kFunction, kMember};
  return lists(kEnums, module, name) ? &kAnEnum : nullptr;
}

// Of a name that is not harmless, as Python 3 has it.
GlobalClass suspicion_of(std::string_view module, std::string_view name) {
  if (is_exception(module, name)) return GlobalClass::unknown;
  if (is_in_dangerous_module(module) || lists(kDangerousNames, module, name)) {
    return GlobalClass::dangerous;
  }
  // "torch" "jit.load" is "torch.jit" "load".
  if (const size_t dot = name.rfind('.'); dot != std::string_view::npos) {
    const std::string owner = std::string(module) + "." + std::string(name.substr(0, dot));
    if (is_in_dangerous_module(owner) || lists(kDangerousNames, owner, name.substr(dot + 1))) {
      return GlobalClass::dangerous;
    }
  }
  if (is_in_dangerous_module(std::string(module) + "." + std::string(name))) {
    return GlobalClass::dangerous;
  }
  return reaches_danger(module, name) ? GlobalClass::dangerous : GlobalClass::unknown;
}

GlobalClass suspicion(std::string_view module, std::string_view name) {
  const auto [new_module, new_name] = pickle::python3_name(module, name);
  return std::max(suspicion_of(new_module, new_name), suspicion_of(module, name));
}

bool is_member(const pickle::NamedGlobal::Attribute& attribute) {
  return lists(kEnums, attribute.module, attribute.owner) && !attribute.name.empty() &&
         attribute.name[0] != '_' && !contains(kNoMembers, attribute.name);
}

bool takes_members_of_enums(const pickle::NamedGlobal& global) {
  return global.uses == 0 && !global.attributes.empty() &&
         std::all_of(global.attributes.begin(), global.attributes.end(), is_member);
}

// Arguments of calls.

using pickle::TracedCall;
using pickle::TracedValue;
using pickle::TracedValues;
using Arguments = std::span<const TracedValue>;

// The name of a global, or of what was called for a result; empty for other values.
std::pair<std::string_view, std::string_view> named_by(const TracedValue& value,
                                                       const TracedValues& values) {
  if (value.kind != TracedValue::global && value.kind != TracedValue::result) return {};
  const pickle::NamedGlobal& global = values.global(value);
  if (global.form != pickle::NamedGlobal::Form::name) return {};
  return pickle::python3_name(global.module, global.name);
}

constexpr Names kPlainResults[] = {
    {"_codecs", "encode"},
    {"builtins", "bool bytearray bytes complex float int range slice str"},
    {"torch", "Size"},
};
constexpr Names kTypeResults[] = {
    {"numpy", "dtype"},
    {"torch", "device"},
    {"torch.serialization", "_get_layout"},
};
constexpr Names kTensorResults[] = {
    {"numpy._core.multiarray", "_reconstruct"},
    {"numpy._core.numeric", "_frombuffer"},
    {"numpy.core.multiarray", "_reconstruct"},
    {"numpy.core.numeric", "_frombuffer"},
    {"torch", "Tensor"},
    {"torch._tensor", "_rebuild_from_type_v2"},
    {"torch.nn", "Parameter"},
    {"torch.nn.parameter", "Buffer Parameter UninitializedBuffer UninitializedParameter"},
};

bool is_encoding(const TracedValue& value, const TracedValues& values) {
  if (value.kind != TracedValue::text) return false;
  const std::optional<std::string> name = values.text(value);
  return name == "latin1" || name == "latin-1" || name == "ascii";
}

// Tuples of one trace, and whether all their elements are tensors and what describes these: calls
// can have the same tuple any number of times.
using KnownTuples = KeyedMap<uint64_t, bool>;

// True if the argument is what the letter stands for.
bool accepts(char letter, const TracedValue& value, const TracedValues& values,
             KnownTuples& known) {
  const auto [module, name] = named_by(value, values);
  const bool is_result = value.kind == TracedValue::result;
  const bool is_plain = value.is_plain || (is_result && lists(kPlainResults, module, name));
  const auto is_tensor = [&](const TracedValue& element) {
    return element.kind != TracedValue::tuple ? accepts('t', element, values, known)
                                              : element.is_plain;
  };
  const auto has_only_tensors = [&](const TracedValue& tuple) {
    const Arguments elements = values.elements(tuple);
    // A trace forgets the first element of what copyreg has used.
    if (!elements.empty() && !is_tensor(elements.front())) return false;
    const auto [found, is_new] = known.try_emplace(tuple.what);
    if (is_new) found->second = std::all_of(elements.begin(), elements.end(), is_tensor);
    return found->second;
  };
  switch (letter) {
    case 'e':  // an encoding's name
      return is_encoding(value, values);
    case 'x':
      return value.kind == TracedValue::text;
    case 'n':  // a number, a text, bytes, a tuple of such
      return is_plain;
    case 'v':  // any value but a name
      return value.kind != TracedValue::other && value.kind != TracedValue::global;
    case 'g':  // a name, which is judged by itself, or None
      return is_plain || (value.kind == TracedValue::global && !name.empty());
    case 'f': {  // a function of torch that makes a tensor
      const Harmless* row = harmless(module, name);
      return value.kind == TracedValue::global && row != nullptr && row->module == "torch._utils";
    }
    case 's':  // a storage
      return value.kind == TracedValue::persistent ||
             (is_result && (module == "torch.storage" || name.ends_with("Storage")) &&
              harmless(module, name) != nullptr);
    case 'd': {  // a data type, layout or device, a tuple of what describes a tensor
      if (value.kind == TracedValue::tuple && !is_plain) return has_only_tensors(value);
      const Harmless* row = harmless(module, name);
      return is_plain ||
             (is_result && (lists(kTypeResults, module, name) ||
                            (row != nullptr && row->module == "numpy.dtypes"))) ||
             (value.kind == TracedValue::global && row != nullptr && row->uses == kValue);
    }
    case 't': {  // a tensor or array, a tuple of these and of what describes them
      if (value.kind == TracedValue::tuple && !is_plain) return has_only_tensors(value);
      const Harmless* row = harmless(module, name);
      const bool is_rebuilt = is_result && row != nullptr && row->module == "torch._utils";
      return is_rebuilt || (is_result && lists(kTensorResults, module, name)) ||
             accepts('d', value, values, known);
    }
    case 'r':  // a random generator, its kind or its name
      return is_plain || module.starts_with("numpy.random.");
    default:
      return false;
  }
}

bool fits(std::string_view pattern, Arguments arguments, const TracedValues& values,
          KnownTuples& known) {
  size_t next = 0;
  bool may_end = false;
  for (const char letter : pattern) {
    if (letter == '*') return true;
    if (letter == '?') {
      may_end = true;
      continue;
    }
    if (next == arguments.size()) return may_end;
    if (!accepts(letter, arguments[next++], values, known)) return false;
  }
  return next == arguments.size();
}

// _rebuild_from_type_v2: the third argument is the tuple that the first one is called with.
bool calls_as_expected(Arguments arguments, const TracedValues& values, KnownTuples& known) {
  const auto [module, name] = named_by(arguments[0], values);
  const Harmless* called = harmless(module, name);
  return called != nullptr && arguments[2].kind == TracedValue::tuple &&
         fits(called->arguments, values.elements(arguments[2]), values, known);
}

bool is_expected_call(const TracedCall& call, KnownTuples& known) {
  const auto [module, name] = pickle::python3_name(call.callable.module, call.callable.name);
  const Harmless* row = harmless(module, name);
  if (row == nullptr || row->arguments == kAnything) return true;
  return call.arguments && fits(row->arguments, *call.arguments, call.values, known) &&
         (!row->arguments.starts_with('f') ||
          calls_as_expected(*call.arguments, call.values, known));
}

}  // namespace

const char* to_string(GlobalClass value) {
  switch (value) {
    case GlobalClass::harmless:
      return "harmless";
    case GlobalClass::allowed:
      return "allowed";
    case GlobalClass::unknown:
      return "unknown";
    case GlobalClass::dangerous:
      break;
  }
  return "dangerous";
}

GlobalClass classify_name(std::string_view module, std::string_view name) {
  const auto [new_module, new_name] = pickle::python3_name(module, name);
  if (harmless(new_module, new_name) != nullptr) return GlobalClass::harmless;
  return suspicion(module, name);
}

pickle::CallCheck expected_calls() {
  return [known = KnownTuples()](const TracedCall& call) mutable {
    return is_expected_call(call, known);
  };
}

GlobalClass classify(const pickle::NamedGlobal& global) {
  using Form = pickle::NamedGlobal::Form;
  constexpr unsigned kNeverHarmless = pickle::kChanged | pickle::kResultCalled;
  switch (global.form) {
    case Form::computed:
    case Form::persistent:
      return GlobalClass::dangerous;
    case Form::extension:
      return GlobalClass::unknown;
    case Form::name:
      break;
  }
  if (takes_members_of_enums(global)) return GlobalClass::harmless;
  if ((global.uses & kNeverHarmless) != 0) return GlobalClass::dangerous;
  const auto [module, name] = pickle::python3_name(global.module, global.name);
  const Harmless* row = harmless(module, name);
  if (row != nullptr && (global.uses & ~row->uses) == 0) return GlobalClass::harmless;
  return suspicion(global.module, global.name);
}

}  // namespace dsckpt
