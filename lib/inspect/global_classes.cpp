#include "inspect/global_classes.h"

#include <algorithm>
#include <string>

#include "pickle/nodes.h"

namespace dsckpt {
namespace {

// A module and names in it, with spaces between them.
struct Names {
  std::string_view module;
  std::string_view names;
};

// Classes whose members are all they have.
constexpr Names kEnums[] = {
    {"accelerate.utils.dataclasses",
     "ComputeEnvironment CustomDtype DistributedType DynamoBackend FP8BackendType "
     "LoggerType PrecisionType RNGType SageMakerDistributedType"},
    {"deepspeed.runtime.config", "DeepSpeedConfigDType DtypeEnum"},
    {"deepspeed.runtime.config_utils", "DtypeEnum"},
    {"deepspeed.runtime.zero.config", "ZeroStageEnum"},
    {"deepspeed.runtime.zero.offload_config", "OffloadDeviceEnum OffloadStateTypeEnum"},
    {"megatron.core.enums", "Fp8Recipe ModelType"},
    {"megatron.core.rerun_state_machine", "RerunDiagnostic RerunMode RerunState"},
    {"megatron.core.transformer.enums",
     "AttnBackend AttnMaskType AttnType CudaGraphScope LayerType ModelType"},
    {"megatron.model.enums", "AttnMaskType AttnType LayerType ModelType PositionEmbeddingType"},
    {"torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"},
    {"torch.distributed.fsdp.api", "BackwardPrefetch ShardingStrategy StateDictType"},
    {"torch.nn.attention", "SDPBackend"},
    {"transformers.debug_utils", "DebugOption"},
    {"transformers.trainer_utils",
     "EvaluationStrategy FSDPOption HubStrategy IntervalStrategy SaveStrategy SchedulerType "
     "ShardedDDPOption"},
    {"transformers.training_args", "OptimizerNames ParallelMode"},
    {"transformers.utils.generic", "ExplicitEnum PaddingStrategy TensorType"},
};

constexpr Names kHarmless[] = {
    {"_codecs", "encode"},
    {"accelerate.state", "AcceleratorState GradientState PartialState"},
    {"accelerate.utils.dataclasses", "DeepSpeedPlugin"},
    {"argparse", "Namespace"},
    {"builtins",
     "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple "
     "Ellipsis NotImplemented"},
    {"collections", "ChainMap Counter OrderedDict UserDict UserList defaultdict deque"},
    {"copyreg", "__newobj__ __newobj_ex__ _reconstructor"},
    {"datetime", "date datetime time timedelta timezone"},
    {"decimal", "Decimal"},
    {"deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler LossScaler LossScalerBase"},
    {"deepspeed.utils.tensor_fragment", "fragment_address"},
    {"fractions", "Fraction"},
    {"lightning.fabric.utilities.data", "AttributeDict"},
    {"lightning.pytorch.utilities.parsing", "AttributeDict"},
    {"lightning_fabric.utilities.data", "AttributeDict"},
    {"numpy",
     "bool_ complex128 complex64 dtype float16 float32 float64 int16 int32 int64 int8 ndarray "
     "uint16 "
     "uint32 uint64 uint8"},
    {"numpy._core.multiarray", "_reconstruct scalar"},
    {"numpy._core.numeric", "_frombuffer"},
    {"numpy.core.multiarray", "_reconstruct scalar"},
    {"numpy.core.numeric", "_frombuffer"},
    {"numpy.dtypes",
     "BoolDType Complex128DType Complex64DType Float16DType Float32DType Float64DType Int16DType "
     "Int32DType Int64DType Int8DType UInt16DType UInt32DType UInt64DType UInt8DType"},
    {"numpy.random._mt19937", "MT19937"},
    {"numpy.random._pcg64", "PCG64 PCG64DXSM"},
    {"numpy.random._philox", "Philox"},
    {"numpy.random._pickle", "__bit_generator_ctor __generator_ctor __randomstate_ctor"},
    {"numpy.random._sfc64", "SFC64"},
    {"numpy.random.bit_generator", "SeedSequence __pyx_unpickle_SeedSequence"},
    {"pathlib", "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath"},
    {"pathlib._local", "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath"},
    {"pytorch_lightning.utilities.parsing", "AttributeDict"},
    {"torch",
     "BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage "
     "DoubleStorage FloatStorage Generator HalfStorage IntStorage LongStorage QInt32Storage "
     "QInt8Storage QUInt2x4Storage QUInt4x2Storage QUInt8Storage ShortStorage Size Tensor "
     "UntypedStorage bfloat16 bits16 bits1x8 bits2x4 bits4x2 bits8 bool channels_last "
     "channels_last_3d complex128 complex32 complex64 contiguous_format device finfo float16 "
     "float32 float4_e2m1fn_x2 float64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
     "float8_e8m0fnu iinfo int1 int16 int2 int3 int32 int4 int5 int6 int64 int7 int8 "
     "per_channel_affine per_channel_symmetric per_tensor_affine per_tensor_symmetric "
     "preserve_format qint32 qint8 quint2x4 quint4x2 quint8 sparse_bsc sparse_bsr sparse_coo "
     "sparse_csc sparse_csr strided uint1 uint16 uint2 uint3 uint32 uint4 uint5 uint6 uint64 uint7 "
     "uint8"},
    {"torch._C", "Generator"},
    {"torch._tensor", "_rebuild_from_type_v2"},
    {"torch._utils",
     "_rebuild_device_tensor_from_cpu_tensor _rebuild_device_tensor_from_numpy "
     "_rebuild_meta_tensor_no_storage _rebuild_nested_tensor _rebuild_parameter "
     "_rebuild_parameter_with_state _rebuild_qtensor _rebuild_sparse_csr_tensor "
     "_rebuild_sparse_tensor _rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 "
     "_rebuild_wrapper_subclass"},
    {"torch.distributed._shard.metadata", "ShardMetadata"},
    {"torch.distributed._shard.sharded_tensor.metadata",
     "MEM_FORMAT_ENCODING ShardedTensorMetadata TensorProperties"},
    {"torch.distributed._tensor.api", "DTensor"},
    {"torch.distributed._tensor.placement_types",
     "DTensorSpec Partial Replicate Shard TensorMeta _Partial"},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo _StoragePrefix"},
    {"torch.distributed.checkpoint.metadata",
     "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta "
     "TensorProperties TensorStorageMetadata"},
    {"torch.distributed.device_mesh", "DeviceMesh"},
    {"torch.distributed.tensor", "DTensor"},
    {"torch.distributed.tensor._dtensor_spec", "DTensorSpec TensorMeta"},
    {"torch.distributed.tensor.placement_types", "Partial Replicate Shard _StridedShard"},
    {"torch.jit._pickle",
     "build_boollist build_doublelist build_intlist build_tensorlist restore_type_tag"},
    {"torch.nn", "Parameter"},
    {"torch.nn.parameter", "Buffer Parameter UninitializedBuffer UninitializedParameter"},
    {"torch.serialization", "_get_layout"},
    {"torch.storage", "TypedStorage UntypedStorage _TypedStorage _UntypedStorage"},
    {"torch.torch_version", "TorchVersion"},
    {"transformers.integrations.deepspeed", "HfDeepSpeedConfig HfTrainerDeepSpeedConfig"},
    {"transformers.trainer_pt_utils", "AcceleratorConfig"},
    {"transformers.training_args", "TrainingArguments"},
    {"transformers.training_args_seq2seq", "Seq2SeqTrainingArguments"},
    {"types", "SimpleNamespace"},
    {"uuid", "SafeUUID UUID"},
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
    {"deepspeed", "init_inference initialize"},
    {"itertools", "accumulate dropwhile filterfalse groupby starmap takewhile"},
    {"numpy", "DataSource fromfile fromregex genfromtxt load loadtxt memmap save savetxt savez"},
    {"numpy.lib._npyio_impl", "load loadtxt genfromtxt fromregex DataSource NpzFile"},
    {"numpy.lib.npyio", "load loadtxt genfromtxt fromregex DataSource NpzFile"},
    {"numpy.lib.format", "read_array open_memmap"},
    {"pandas", "eval read_pickle read_csv read_hdf read_sql"},
    {"pandas.io.pickle", "read_pickle to_pickle"},
    {"torch", "compile load save classes ops hub jit from_file"},
    {"torch._utils", "_import_dotted_name _get_async_or_non_blocking"},
    {"torch.serialization", "load _load _legacy_load save _save _open_file _open_file_like"},
    {"torch.storage", "_load_from_bytes"},
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

GlobalClass classify_python3(std::string_view module, std::string_view name) {
  if (lists(kHarmless, module, name) || lists(kEnums, module, name)) return GlobalClass::harmless;
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

bool takes_members_of_enums(const pickle::NamedGlobal& global) {
  return global.uses == 0 && !global.attributes.empty() &&
         std::all_of(global.attributes.begin(), global.attributes.end(), [](const auto& attribute) {
           return lists(kEnums, attribute.module, attribute.owner) && !attribute.name.empty() &&
                  attribute.name[0] != '_';
         });
}

}  // namespace

const char* to_string(GlobalClass value) {
  switch (value) {
    case GlobalClass::harmless:
      return "harmless";
    case GlobalClass::unknown:
      return "unknown";
    case GlobalClass::dangerous:
      break;
  }
  return "dangerous";
}

GlobalClass classify_name(std::string_view module, std::string_view name) {
  const auto [new_module, new_name] = pickle::python3_name(module, name);
  const GlobalClass now = classify_python3(new_module, new_name);
  if (now == GlobalClass::unknown && classify_python3(module, name) == GlobalClass::dangerous) {
    return GlobalClass::dangerous;
  }
  return now;
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
  return classify_name(global.module, global.name);
}

}  // namespace dsckpt
