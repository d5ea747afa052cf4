// The key strings of DeepSpeed's checkpoints, each once. Their names are those of
// deepspeed/checkpoint/constants.py, or of the engine if it has none.
#pragma once

#include <string_view>

namespace dsckpt::keys {

// Model-states files.
inline constexpr std::string_view kModule = "module";
inline constexpr std::string_view kBufferNames = "buffer_names";
inline constexpr std::string_view kParamShapes = "param_shapes";
inline constexpr std::string_view kFrozenParamShapes = "frozen_param_shapes";
inline constexpr std::string_view kFrozenParamFragments = "frozen_param_fragments";
inline constexpr std::string_view kSharedParams = "shared_params";
inline constexpr std::string_view kOptimizer = "optimizer";
inline constexpr std::string_view kDpWorldSize = "dp_world_size";
inline constexpr std::string_view kMpWorldSize = "mp_world_size";
inline constexpr std::string_view kGlobalSteps = "global_steps";
inline constexpr std::string_view kSkippedSteps = "skipped_steps";
inline constexpr std::string_view kGlobalSamples = "global_samples";
inline constexpr std::string_view kSparseTensorNames = "sparse_tensor_module_names";
inline constexpr std::string_view kLrScheduler = "lr_scheduler";
inline constexpr std::string_view kDataSampler = "data_sampler";
inline constexpr std::string_view kRandomLtd = "random_ltd";
inline constexpr std::string_view kDsConfig = "ds_config";
inline constexpr std::string_view kDsVersion = "ds_version";
inline constexpr std::string_view kCheckpointParallelDimensions = "checkpoint_parallel_dimensions";
inline constexpr std::string_view kUniversalCheckpointInfo = "universal_checkpoint_info";
inline constexpr std::string_view kAutoEpLayers = "ds_autoep_layers";
inline constexpr std::string_view kAutoEpLayersLegacy = "autoep_layers";
inline constexpr std::string_view kFolding = "folding";
// Not DeepSpeed's: Megatron's and NeoX's.
inline constexpr std::string_view kArguments = "args";

// Optimizer-states files.
inline constexpr std::string_view kOptimizerStateDict = "optimizer_state_dict";
inline constexpr std::string_view kZeroStage = "zero_stage";
inline constexpr std::string_view kPartitionCount = "partition_count";
inline constexpr std::string_view kLossScaler = "loss_scaler";
inline constexpr std::string_view kSingleFp32Partition = "single_partition_of_fp32_groups";
inline constexpr std::string_view kFp32FlatGroups = "fp32_flat_groups";
inline constexpr std::string_view kBaseOptimizerState = "base_optimizer_state";
inline constexpr std::string_view kParamGroups = "param_groups";
inline constexpr std::string_view kUseMuon = "use_muon";
inline constexpr std::string_view kMomentumBuffer = "momentum_buffer";
inline constexpr std::string_view kClipGrad = "clip_grad";
inline constexpr std::string_view kOverflow = "overflow";
inline constexpr std::string_view kDynamicLossScale = "dynamic_loss_scale";
inline constexpr std::string_view kBaseOptimizerStateStep = "base_optimizer_state_step";
inline constexpr std::string_view kGroupPaddings = "group_paddings";
inline constexpr std::string_view kParamAlignmentPaddings = "param_alignment_paddings";
inline constexpr std::string_view kParamSliceMappings = "param_slice_mappings";
inline constexpr std::string_view kZeroPartitionGroups = "ds_zero_partition_groups";

// Stage 0, inside `optimizer`.
inline constexpr std::string_view kFp32Groups = "fp32_groups";
inline constexpr std::string_view kFp32GroupsFlat = "fp32_groups_flat";

// Not DeepSpeed's: "weights" in model-states and optimizer-states files that ckpt-pack strip made.
inline constexpr std::string_view kStripped = "dsckpt_stripped";

// universal_checkpoint_info of model-states files.
inline constexpr std::string_view kUniversalVersion = "universal_checkpoint_version";
inline constexpr std::string_view kOriginalVocabSize = "original_vocab_size";
inline constexpr std::string_view kVocabulary = "vocabulary_parameter_patterns";
inline constexpr std::string_view kPipelineReplicated = "pipeline_replicated_parameter_patterns";
inline constexpr std::string_view kTpReplicated = "tp_replicated_parameter_patterns";
inline constexpr std::string_view kToAverage = "parameter_to_average_patterns";
inline constexpr std::string_view kRowParallel = "parameter_with_row_parallelism_patterns";
inline constexpr std::string_view kTwoSubParams = "parameter_with_2_sub_params_cat_dim_0";
inline constexpr std::string_view kSubParams = "parameter_with_sub_params";
inline constexpr std::string_view kSubParamShardWidths = "sub_param_shard_widths";
inline constexpr std::string_view kAffineMap = "affine_map";
inline constexpr std::string_view kAutoTpUnsupported = "autotp_unsupported_parameter_patterns";
// Not DeepSpeed's. A checkpoint on another grid has the cuts of the first one here, if its own
// slices do not tell them (tp_cut.h). They are dicts by name. Each has the dimension, the rows of
// each part by rank, and a flag for parts that every rank had.
inline constexpr std::string_view kFirstShares = "dsckpt_first_shares";
inline constexpr std::string_view kSharesDim = "dim";
inline constexpr std::string_view kSharesRows = "rows";
inline constexpr std::string_view kSharesOnEveryRank = "on_every_rank";

// PipelineModule: the prefix of the names of tied layers.
inline constexpr std::string_view kTiedModules = "tied_modules.";

}  // namespace dsckpt::keys
