#include "inspect/written_calls.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "inspect/words.h"
#include "pickle/nodes.h"

namespace dsckpt {
namespace {

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
// Attributes that getattr could return, but that are not members: methods of str, int and the
// classes.
constexpr std::string_view kNoMembers =
    "as_integer_ratio bit_count bit_length capitalize casefold center conjugate count encode "
    "endswith expandtabs find format format_map from_bytes index isalnum isalpha isascii isdecimal "
    "isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower "
    "lstrip maketrans mro partition removeprefix removesuffix replace rfind rindex rjust "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title to_bytes translate "
    "upper zfill";

// Permitted uses of a name, as pickle::Use. Programs may later call a name that is stored as a
// value with any argument, so it must be harmless even then.
constexpr unsigned kValue = pickle::kNamed;
constexpr unsigned kCall = pickle::kCalled;
constexpr unsigned kMake = pickle::kMade;
constexpr unsigned kState = pickle::kBuilt;
constexpr unsigned kFill = pickle::kFilled;

constexpr char kNothingElse = WrittenCall::kNothingElse;

using Row = WrittenCall;

constexpr Row kRows[] = {
    {"_codecs", "encode", kCall, kNothingElse, 'B', "xe"},
    {"builtins", "bytearray", kValue | kCall, kNothingElse, 'n', "|B|xe"},
    {"builtins", "bytes", kValue | kCall, kNothingElse, 'n', ""},
    {"builtins", "complex", kValue | kCall, kNothingElse, 'n', "rr"},
    {"builtins", "dict list", kValue, 'F'},
    {"builtins", "bool float int str tuple", kValue, 'F'},
    {"builtins", "object", kValue | kMake, 'F'},
    {"builtins", "frozenset set", kValue | kCall, 'F', kNothingElse, "L"},
    {"builtins", "range slice", kCall, kNothingElse, 'n', "nnn"},
    {"builtins", "Ellipsis NotImplemented", kValue},
    {"collections", "Counter", kValue | kCall, 'F', kNothingElse, "M"},
    {"collections", "OrderedDict", kValue | kCall | kState | kFill, 'F', 'O', "|L", "A"},
    {"collections", "defaultdict", kValue | kCall | kFill, 'F', kNothingElse, "?F"},
    {"collections", "deque", kValue | kCall | kFill, 'F', kNothingElse, "|()?i|L?n"},
    // These functions make an object of the class in their first argument.
    {"copyreg", "__newobj__ _reconstructor", kCall, kNothingElse, kNothingElse, "v*"},
    {"datetime", "date", kCall, kNothingElse, 'n', "B|x"},
    {"datetime", "datetime time", kCall, kNothingElse, 'n', "B?z|x?z"},
    {"datetime", "timedelta", kCall, kNothingElse, 'm', "iii"},
    {"datetime", "timezone", kCall, kNothingElse, 'z', "m?x"},
    {"decimal", "Decimal", kCall, kNothingElse, 'n', "x"},
    {"fractions", "Fraction", kCall, kNothingElse, 'n', "ii|q"},
    {"lightning.fabric.utilities.data", "AttributeDict", kMake | kFill, kNothingElse, kNothingElse},
    {"lightning.pytorch.utilities.parsing", "AttributeDict", kMake | kFill, kNothingElse,
     kNothingElse},
    {"lightning_fabric.utilities.data", "AttributeDict", kMake | kFill, kNothingElse, kNothingElse},
    {"numpy",
     "bool bool_ bytes_ complex128 complex64 datetime64 float16 float32 float64 int16 int32 int64 "
     "int8 longdouble str_ timedelta64 uint16 uint32 uint64 uint8",
     kValue},
    {"numpy", "dtype", kValue | kCall | kState, kNothingElse, 'D', "K01", "#"},
    {"numpy", "ndarray", kValue, 'N'},
    {"numpy._core.multiarray", "_reconstruct", kCall | kState, kNothingElse, 'a', "NZY", "@"},
    {"numpy._core.multiarray", "scalar", kCall, kNothingElse, 'n', "DB"},
    {"numpy._core.numeric", "_frombuffer", kCall, kNothingElse, 'a', "BDIx"},
    {"numpy.core.multiarray", "_reconstruct", kCall | kState, kNothingElse, 'a', "NZY", "@"},
    {"numpy.core.multiarray", "scalar", kCall, kNothingElse, 'n', "DB"},
    {"numpy.core.numeric", "_frombuffer", kCall, kNothingElse, 'a', "BDIx"},
    {"numpy.dtypes",
     "BoolDType Complex128DType Complex64DType Float16DType Float32DType Float64DType Int16DType "
     "Int32DType Int64DType Int8DType UInt16DType UInt32DType UInt64DType UInt8DType",
     kValue},
    {"numpy.random._mt19937", "MT19937", kValue, 'R'},
    {"numpy.random._pcg64", "PCG64 PCG64DXSM", kValue, 'R'},
    {"numpy.random._philox", "Philox", kValue, 'R'},
    {"numpy.random._sfc64", "SFC64", kValue, 'R'},
    {"numpy.random._pickle", "__bit_generator_ctor", kValue | kCall | kState, 'H', 'G', "?R|x",
     "C|(CQ)|(Cn)"},
    {"numpy.random._pickle", "__generator_ctor __randomstate_ctor", kCall | kState, kNothingElse,
     kNothingElse, "?G|x?H", "C"},
    {"numpy.random.bit_generator", "SeedSequence", kValue, 'P'},
    {"numpy.random.bit_generator", "__pyx_unpickle_SeedSequence", kCall | kState, kNothingElse, 'Q',
     "Piw", "(wiaiw)"},
    {"pathlib", "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath", kCall,
     kNothingElse, 'n', "x*"},
    {"pathlib._local", "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath", kCall,
     kNothingElse, 'n', "x*"},
    {"pytorch_lightning.utilities.parsing", "AttributeDict", kMake | kFill, kNothingElse,
     kNothingElse},
    // Python 3.5 to 3.11.3 pickles enum members that were made from constants by name.
    {"signal",
     "SIGABRT SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGIOT "
     "SIGKILL SIGPIPE SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMIN SIGSEGV SIGSTKFLT SIGSTOP "
     "SIGSYS SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH "
     "SIGXCPU SIGXFSZ",
     kValue},
    {"torch",
     "BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage "
     "DoubleStorage FloatStorage HalfStorage IntStorage LongStorage QInt32Storage QInt8Storage "
     "QUInt2x4Storage QUInt4x2Storage QUInt8Storage ShortStorage UntypedStorage",
     kValue, 'k'},
    {"torch", "Size", kValue | kCall, kNothingElse, 'I', "J"},
    {"torch", "Generator", kValue | kCall | kState, kNothingElse, kNothingElse, "V", "(int)"},
    {"torch._C", "Generator", kValue | kCall | kState, kNothingElse, kNothingElse, "V", "(int)"},
    {"torch", "Tensor", kValue, 'T'},
    {"torch", "device", kValue | kCall, kNothingElse, 'V', "x?i"},
    {"torch",
     "bfloat16 bits16 bits1x8 bits2x4 bits4x2 bits8 bool complex128 complex32 complex64 float16 "
     "float32 float4_e2m1fn_x2 float64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
     "float8_e8m0fnu int1 int16 int2 int3 int32 int4 int5 int6 int64 int7 int8 qint32 qint8 "
     "quint2x4 quint4x2 quint8 uint1 uint16 uint2 uint3 uint32 uint4 uint5 uint6 uint64 uint7 "
     "uint8",
     kValue, 'd'},
    {"torch",
     "channels_last channels_last_3d contiguous_format per_channel_affine "
     "per_channel_affine_float_qparams per_channel_symmetric per_tensor_affine "
     "per_tensor_symmetric preserve_format sparse_bsc sparse_bsr sparse_coo sparse_csc sparse_csr "
     "strided",
     kValue, 'g'},
    // These functions call their first argument with their third, a tuple.
    {"torch._tensor", "_rebuild_from_type", kCall, kNothingElse, 't', "XTvA"},
    {"torch.tensor", "_rebuild_from_type", kCall, kNothingElse, 't', "XTvA"},
    // The second state is ShardedTensor's: shards, metadata, ranks, their order, and whether it
    // uses RPC.
    {"torch._tensor", "_rebuild_from_type_v2", kCall, kNothingElse, 't', "XTvS|Xhv(Lvvv0)"},
    {"torch._utils", "_rebuild_tensor", kValue | kCall, 'X', 't', "siII"},
    {"torch._utils", "_rebuild_tensor_v2", kValue | kCall, 'X', 't', "siIIbO?A"},
    {"torch._utils", "_rebuild_tensor_v3", kValue | kCall, 'X', 't', "siIIbOd?A"},
    {"torch._utils", "_rebuild_parameter", kValue | kCall, 'X', 't', "tbO"},
    {"torch._utils", "_rebuild_parameter_with_state", kValue | kCall, 'X', 't', "tbOS"},
    {"torch._utils", "_rebuild_qtensor", kValue | kCall, 'X', 't', "siII(gri)bO|siII(gtti)bO"},
    {"torch._utils", "_rebuild_sparse_tensor", kValue | kCall, 'X', 't', "l(ttI?b)|l(tttI)"},
    {"torch._utils", "_rebuild_sparse_csr_tensor", kValue | kCall, 'X', 't', "l(tttI)"},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", kValue | kCall, 'X', 't', "dIIb"},
    {"torch._utils", "_rebuild_wrapper_subclass", kValue | kCall, 'X', 't', "TdIIilVb|hdIIilVb"},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", kValue | kCall, 'X', 't',
     "tdVb|tdxb"},
    {"torch._utils", "_rebuild_device_tensor_from_numpy _rebuild_xla_tensor", kValue | kCall, 'X',
     't', "adxb"},
    {"torch.distributed._shard.metadata", "ShardMetadata", kMake | kState, kNothingElse,
     kNothingElse, "", "S"},
    {"torch.distributed._shard.sharded_tensor.api", "ShardedTensor", kValue, 'h'},
    {"torch.distributed._shard.sharded_tensor.shard", "Shard", kMake | kState, kNothingElse,
     kNothingElse, "", "S"},
    {"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties", kMake | kState,
     kNothingElse, kNothingElse, "", "(vvbvb)|A"},
    {"torch.distributed._tensor.api", "DTensor", kValue, 'T'},
    {"torch.distributed._tensor.placement_types",
     "DTensorSpec Partial Replicate Shard TensorMeta _Partial", kMake | kState, kNothingElse,
     kNothingElse, "|IId", "A"},
    {"torch.distributed.checkpoint.metadata", "TensorProperties", kMake | kState, kNothingElse,
     kNothingElse, "", "(vvbvb)|A"},
    {"torch.distributed.tensor", "DTensor", kValue, 'T'},
    {"torch.distributed.tensor._dtensor_spec", "DTensorSpec ShardOrderEntry TensorMeta",
     kMake | kState, kNothingElse, kNothingElse, "|IId|iI", "A"},
    {"torch.jit._pickle", "build_boollist build_doublelist build_intlist build_tensorlist", kCall,
     kNothingElse, kNothingElse, "L"},
    {"torch.jit._pickle", "restore_type_tag", kCall, kNothingElse, kNothingElse, "wx"},
    {"torch.nn", "Parameter", kValue, 'T'},
    {"torch.nn.parameter", "Buffer Parameter", kValue, 'T'},
    {"torch.nn.parameter", "UninitializedBuffer UninitializedParameter", kValue | kCall, 'T', 't',
     "?b"},
    {"torch.serialization", "_get_layout", kCall, kNothingElse, 'l', "x"},
    {"torch.storage", "TypedStorage UntypedStorage _TypedStorage _UntypedStorage", kValue, 'k'},
    {"torch.torch_version", "TorchVersion", kMake, kNothingElse, 'n', "x"},
    {"types", "SimpleNamespace", kCall | kState, kNothingElse, kNothingElse, "", "A"},
};
// Classes whose objects are made without __init__, and then get their attributes.
constexpr Names kPlainClasses[] = {
    {"accelerate.parallelism_config", "ParallelismConfig"},
    {"accelerate.state", "AcceleratorState GradientState PartialState"},
    {"accelerate.utils.dataclasses",
     "DataLoaderConfiguration DeepSpeedPlugin FullyShardedDataParallelPlugin "
     "GradientAccumulationPlugin ProjectConfiguration TorchDynamoPlugin"},
    {"argparse", "Namespace"},
    {"collections", "ChainMap UserDict UserList"},
    {"deepspeed.checkpoint.universal_checkpoint", "SubparamShape"},
    {"deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler LossScaler LossScalerBase"},
    {"deepspeed.utils.tensor_fragment", "fragment_address"},
    {"peft.tuners.lora.config", "LoraConfig LoraRuntimeConfig"},
    {"torch.distributed._mesh_layout", "_FlatLayout _MeshLayout"},
    {"torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata"},
    {"torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec"},
    {"torch.distributed._shard.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec"},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo _StoragePrefix"},
    {"torch.distributed.checkpoint.metadata",
     "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta "
     "TensorStorageMetadata"},
    {"torch.distributed.device_mesh", "DeviceMesh"},
    {"torch.distributed.remote_device", "_remote_device"},
    {"torch.distributed.tensor.placement_types", "Partial Replicate Shard _StridedShard"},
    {"transformers.generation.configuration_utils", "GenerationConfig"},
    {"transformers.integrations.deepspeed", "HfDeepSpeedConfig HfTrainerDeepSpeedConfig"},
    {"transformers.trainer_pt_utils", "AcceleratorConfig"},
    {"transformers.training_args", "TrainingArguments"},
    {"transformers.training_args_seq2seq", "Seq2SeqTrainingArguments"},
    {"trl.trainer.dpo_config", "DPOConfig"},
    {"trl.trainer.grpo_config", "GRPOConfig"},
    {"trl.trainer.kto_config", "KTOConfig"},
    {"trl.trainer.ppo_config", "PPOConfig"},
    {"trl.trainer.reward_config", "RewardConfig"},
    {"trl.trainer.sft_config", "SFTConfig"},
    {"uuid", "UUID"},
};
// Inner classes of these. Picklers of protocols 2 and 3 take them by getattr.
constexpr std::array<std::string_view, 3> kInnerClasses[] = {
    {"torch.distributed._shard.sharded_tensor.api", "ShardedTensor", "ProcessGroupState"},
};
constexpr Row kPlainRow{"", "", kMake | kState, kNothingElse, kNothingElse, "", "A"};
constexpr Row kEnumRow{"", "", kValue | kCall, kNothingElse, 'n', "n"};

}  // namespace

const WrittenCall* written_call(std::string_view module, std::string_view name) {
  const auto renamed = pickle::python3_name(module, name);
  const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& entry) {
    return entry.module == renamed.first && has_word(entry.names, renamed.second);
  });
  if (row != std::end(kRows)) return row;
  if (lists(kPlainClasses, renamed.first, renamed.second)) return &kPlainRow;
  return lists(kEnums, renamed.first, renamed.second) ? &kEnumRow : nullptr;
}

unsigned written_uses(std::string_view module, std::string_view name) {
  const WrittenCall* row = written_call(module, name);
  return row == nullptr ? 0 : row->uses;
}

bool is_inner_class_of(std::string_view module, std::string_view owner, std::string_view name) {
  return std::any_of(std::begin(kInnerClasses), std::end(kInnerClasses), [&](const auto& each) {
    return each[0] == module && each[1] == owner && each[2] == name;
  });
}

bool is_written_attribute(const pickle::NamedGlobal::Attribute& attribute) {
  const bool is_member = lists(kEnums, attribute.module, attribute.owner) &&
                         !attribute.name.empty() && attribute.name[0] != '_' &&
                         !has_word(kNoMembers, attribute.name);
  return is_member || is_inner_class_of(attribute.module, attribute.owner, attribute.name);
}

}  // namespace dsckpt
