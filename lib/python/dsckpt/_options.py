"""The tools' options by function: what each is called in Python, and what the tool says of it. Made by scripts/write_python_options.py."""

TOOLS = {
    "convert": ('zero-to-fp32',),
    "average": ('zero-to-fp32',),
    "to_universal": ('to-universal',),
    "to_dcp": ('to-dcp',),
    "reshard": ('reshard',),
    "pack": ('ckpt-pack', 'pack'),
    "unpack": ('ckpt-pack', 'unpack'),
    "strip": ('ckpt-pack', 'strip'),
    "keep": ('ckpt-pack', 'keep'),
    "inspect": ('ckpt-inspect',),
    "html": ('ckpt-inspect',),
    "tree": ('ckpt-inspect', 'tree'),
    "list_tensors": ('ckpt-inspect', 'list'),
    "where": ('ckpt-inspect', 'where'),
    "print": ('ckpt-inspect', 'print'),
    "raw": ('ckpt-inspect', 'raw'),
    "stats": ('ckpt-inspect', 'stats'),
    "verify": ('ckpt-inspect', 'verify'),
    "diff": ('ckpt-inspect', 'diff'),
    "scan": ('ckpt-inspect', 'scan'),
}  # fmt: skip

OPTIONS = {
    "convert": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`); all: every tag, each into a folder of its name",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "param_names":
            "FILE: File with the names of model.named_parameters(), one per line, for an optimizer of another framework that numbers its parameters",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "average":
            "Average several checkpoints of one model: sum(w * x) / sum(w) in double precision, rounded once to --dtype. Buffers are those of the newest, by its step, or else the last given",
        "last":
            "N: With --average: of one folder, its N newest complete tags",
        "weights":
            "W,W,...: With --average: w, one number above 0 for each checkpoint, in the given order (with --last the oldest first), divided by their sum; default: all alike",
        "ema":
            "DECAY: With --average: the exponential moving average over the checkpoints by their steps: A = the oldest, then A = DECAY * A + (1 - DECAY) * the next",
        "safe_serialization":
            "Write safetensors instead of .bin files",
        "max_shard_size":
            "SIZE: Largest file: digits and KB, MB, GB or TB; none: a single file (default: 5GB)",
        "exclude_frozen_parameters":
            "Leave out parameters that were not trained",
        "dtype":
            "TYPE: Floating tensors become float32, float16 or bfloat16 (fp32, fp16, bf16); keep: as stored (masters are float32); auto: the type in config.json (default: float32)",
        "keep_fp32":
            "REGEX: These stay float32 with any --dtype",
        "include":
            "REGEX: Write only tensors whose name matches",
        "exclude":
            "REGEX: Leave out tensors whose name matches",
        "strip_prefix":
            "PREFIX: Remove this from the front of names that have it",
        "key_map":
            "FILE: Rename, cut and join tensors by the rules in this file, lines of 'REGEX => REPLACEMENT', with their optimizer states",
        "names":
            "WHOSE: Call tensors as save_pretrained does (hub), or as the module has them (module); default: hub for a model that a config.json of transformers 5 names",
        "hf_config":
            "DIR: Copy configuration, tokenizer and processor files from this Hugging Face folder, so that from_pretrained loads the result; default: those beside the checkpoint. none: copy none",
        "states":
            "Write the optimizer's states too, as optimizer_states/STATE.safetensors",
        "torch_optimizer":
            "Write the optimizer too, as optimizer.pt for optimizer.load_state_dict",
        "peft":
            "DIR: Write only the trained PEFT adapter, to this folder",
        "merge":
            "BASE: Write the model with the trained PEFT adapter merged into BASE, the model before: a Hugging Face folder, other weights, or the word checkpoint for the base that the run saved itself. The checkpoint may be a folder of peft's save_pretrained",
        "peft_config":
            "FILE: With --peft or --merge: its adapter_config.json; default: the one beside the shards, or derived from the tensors",
        "lora_alpha":
            "ALPHA: With --peft or --merge, if there is no adapter_config.json: lora_alpha",
        "allow_missing":
            "Write the parameters that are complete without missing or damaged files, and list the others",
        "debug":
            "Print facts about the checkpoint",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: also show the work of each of N ranks (mpirun -n N)",
        "disk_rate":
            "RATE: With --ranks: also show the time if each reads and writes so many bytes a second",
        "force":
            "Replace files of the same names",
        "fsync":
            "Wait until the data is on the disk before it gets its final name",
        "io":
            "MODE: buffered (through the page cache), direct (past it), or auto (direct where the output is more than the page cache takes at once) (default: auto)",
        "verify_output":
            "Read everything back from the disk before it gets its final name, and compare",
        "limit_rate":
            "RATE: Write at most so many bytes a second: digits and KB, MB, GB or TB",
        "stripe":
            "COUNT[,SIZE]: On Lustre: stripe the output over COUNT OSTs, or all, in stripes of SIZE (lfs setstripe); auto: all, in stripes of 4MiB",
        "resume":
            "Keep the progress if the run stops, and continue from earlier progress",
        "save_every":
            "SECONDS: With --resume: sync progress to disk every SECONDS (default: 10)",
        "plan_in":
            "DIR: With --emit-plan, --share or --resume, and an output in an object store: plan in this new folder, which all steps see",
        "verify":
            "Check the CRC32 of every record of the checkpoint, also those not needed",
        "zstd":
            "Write packed files, NAME.dspack, which all tools here read and ckpt-pack unpacks; --zstd=LEVEL, 1 to 19, compresses repetitive data harder",
        "threads":
            "N: Threads to use (default: one per core, and more if that keeps a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (unchanged), or idle (after all other processes) (default: none)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "average": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`); all: every tag, each into a folder of its name",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "param_names":
            "FILE: File with the names of model.named_parameters(), one per line, for an optimizer of another framework that numbers its parameters",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "last":
            "N: With --average: of one folder, its N newest complete tags",
        "weights":
            "W,W,...: With --average: w, one number above 0 for each checkpoint, in the given order (with --last the oldest first), divided by their sum; default: all alike",
        "ema":
            "DECAY: With --average: the exponential moving average over the checkpoints by their steps: A = the oldest, then A = DECAY * A + (1 - DECAY) * the next",
        "safe_serialization":
            "Write safetensors instead of .bin files",
        "max_shard_size":
            "SIZE: Largest file: digits and KB, MB, GB or TB; none: a single file (default: 5GB)",
        "exclude_frozen_parameters":
            "Leave out parameters that were not trained",
        "dtype":
            "TYPE: Floating tensors become float32, float16 or bfloat16 (fp32, fp16, bf16); keep: as stored (masters are float32); auto: the type in config.json (default: float32)",
        "keep_fp32":
            "REGEX: These stay float32 with any --dtype",
        "include":
            "REGEX: Write only tensors whose name matches",
        "exclude":
            "REGEX: Leave out tensors whose name matches",
        "strip_prefix":
            "PREFIX: Remove this from the front of names that have it",
        "key_map":
            "FILE: Rename, cut and join tensors by the rules in this file, lines of 'REGEX => REPLACEMENT', with their optimizer states",
        "names":
            "WHOSE: Call tensors as save_pretrained does (hub), or as the module has them (module); default: hub for a model that a config.json of transformers 5 names",
        "hf_config":
            "DIR: Copy configuration, tokenizer and processor files from this Hugging Face folder, so that from_pretrained loads the result; default: those beside the checkpoint. none: copy none",
        "states":
            "Write the optimizer's states too, as optimizer_states/STATE.safetensors",
        "torch_optimizer":
            "Write the optimizer too, as optimizer.pt for optimizer.load_state_dict",
        "peft":
            "DIR: Write only the trained PEFT adapter, to this folder",
        "merge":
            "BASE: Write the model with the trained PEFT adapter merged into BASE, the model before: a Hugging Face folder, other weights, or the word checkpoint for the base that the run saved itself. The checkpoint may be a folder of peft's save_pretrained",
        "peft_config":
            "FILE: With --peft or --merge: its adapter_config.json; default: the one beside the shards, or derived from the tensors",
        "lora_alpha":
            "ALPHA: With --peft or --merge, if there is no adapter_config.json: lora_alpha",
        "allow_missing":
            "Write the parameters that are complete without missing or damaged files, and list the others",
        "debug":
            "Print facts about the checkpoint",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: also show the work of each of N ranks (mpirun -n N)",
        "disk_rate":
            "RATE: With --ranks: also show the time if each reads and writes so many bytes a second",
        "force":
            "Replace files of the same names",
        "fsync":
            "Wait until the data is on the disk before it gets its final name",
        "io":
            "MODE: buffered (through the page cache), direct (past it), or auto (direct where the output is more than the page cache takes at once) (default: auto)",
        "verify_output":
            "Read everything back from the disk before it gets its final name, and compare",
        "limit_rate":
            "RATE: Write at most so many bytes a second: digits and KB, MB, GB or TB",
        "stripe":
            "COUNT[,SIZE]: On Lustre: stripe the output over COUNT OSTs, or all, in stripes of SIZE (lfs setstripe); auto: all, in stripes of 4MiB",
        "resume":
            "Keep the progress if the run stops, and continue from earlier progress",
        "save_every":
            "SECONDS: With --resume: sync progress to disk every SECONDS (default: 10)",
        "plan_in":
            "DIR: With --emit-plan, --share or --resume, and an output in an object store: plan in this new folder, which all steps see",
        "verify":
            "Check the CRC32 of every record of the checkpoint, also those not needed",
        "zstd":
            "Write packed files, NAME.dspack, which all tools here read and ckpt-pack unpacks; --zstd=LEVEL, 1 to 19, compresses repetitive data harder",
        "threads":
            "N: Threads to use (default: one per core, and more if that keeps a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (unchanged), or idle (after all other processes) (default: none)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "to_universal": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`); all: every tag, each into a folder of its name",
        "param_names":
            "FILE: File with the names of model.named_parameters(), one per line, for an optimizer of another framework that numbers its parameters",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "no_strict":
            "Patterns of universal_checkpoint_info that fit no parameter are no error",
        "num_extract_workers":
            "N: The larger of the two is the number of threads, if --threads is not given",
        "num_merge_workers":
            "N: See --num-extract-workers",
        "keep_temp_folder":
            "Accepted without effect: there is no temporary folder",
        "inject_missing_state":
            "Accepted and without effect: a universal_checkpoint_info that is not needed is not missed, one that is needed cannot be made up",
        "like":
            "CHECKPOINT: For weights: a checkpoint of the run that starts from them, with its trained, frozen and tied parameters and the optimizer's states",
        "strip_prefix":
            "PREFIX: For weights: remove this from the front of names that have it",
        "add_prefix":
            "PREFIX: For weights: put this in front of all names",
        "key_map":
            "FILE: Rename, cut and join tensors by the rules in this file, lines of 'REGEX => REPLACEMENT', with their optimizer states",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: also show the work of each of N ranks (mpirun -n N)",
        "disk_rate":
            "RATE: With --ranks: also show the time if each reads and writes so many bytes a second",
        "force":
            "Replace a universal checkpoint that is in the output folder",
        "fsync":
            "Wait until the data is on the disk before it gets its final name",
        "io":
            "MODE: buffered (through the page cache), direct (past it), or auto (direct where the output is more than the page cache takes at once) (default: auto)",
        "verify_output":
            "Read everything back from the disk before it gets its final name, and compare",
        "limit_rate":
            "RATE: Write at most so many bytes a second: digits and KB, MB, GB or TB",
        "stripe":
            "COUNT[,SIZE]: On Lustre: stripe the output over COUNT OSTs, or all, in stripes of SIZE (lfs setstripe); auto: all, in stripes of 4MiB",
        "resume":
            "Keep the progress if the run stops, and continue from earlier progress",
        "save_every":
            "SECONDS: With --resume: sync progress to disk every SECONDS (default: 10)",
        "plan_in":
            "DIR: With --emit-plan, --share or --resume, and an output in an object store: plan in this new folder, which all steps see",
        "verify":
            "Check the CRC32 of every record of the checkpoint, also those not needed",
        "zstd":
            "Write packed files, NAME.dspack, which all tools here read and ckpt-pack unpacks; --zstd=LEVEL, 1 to 19, compresses repetitive data harder",
        "threads":
            "N: Threads to use (default: one per core, and more if that keeps a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (unchanged), or idle (after all other processes) (default: none)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "to_dcp": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`); all: every tag, each into a folder of its name",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "param_names":
            "FILE: File with the names of model.named_parameters(), one per line, for an optimizer of another framework that numbers its parameters",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "dp":
            "N: Ranks that are to load it: tensors are cut as FSDP2 cuts them. Another number of ranks can load it too, and reads more",
        "preset":
            "WHO: Keys and folders for this program: torch (dcp.load of {\"model\", \"optim\"}), Accelerate, transformers' Trainer, torchtitan, or Lightning Fabric (default: torch)",
        "dtype":
            "TYPE: The model's floating tensors become float32, float16 or bfloat16 (fp32, fp16, bf16); keep: as stored (masters are float32). Optimizer states stay (default: float32)",
        "key_map":
            "FILE: Rename, cut and join tensors by the rules in this file, lines of 'REGEX => REPLACEMENT', with their optimizer states",
        "weights_only":
            "Leave out the optimizer, the scheduler and the counters",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: also show the work of each of N ranks (mpirun -n N)",
        "disk_rate":
            "RATE: With --ranks: also show the time if each reads and writes so many bytes a second",
        "force":
            "Replace to-dcp's earlier output",
        "fsync":
            "Wait until the data is on the disk before it gets its final name",
        "io":
            "MODE: buffered (through the page cache), direct (past it), or auto (direct where the output is more than the page cache takes at once) (default: auto)",
        "verify_output":
            "Read everything back from the disk before it gets its final name, and compare",
        "limit_rate":
            "RATE: Write at most so many bytes a second: digits and KB, MB, GB or TB",
        "stripe":
            "COUNT[,SIZE]: On Lustre: stripe the output over COUNT OSTs, or all, in stripes of SIZE (lfs setstripe); auto: all, in stripes of 4MiB",
        "resume":
            "Keep the progress if the run stops, and continue from earlier progress",
        "save_every":
            "SECONDS: With --resume: sync progress to disk every SECONDS (default: 10)",
        "plan_in":
            "DIR: With --emit-plan, --share or --resume, and an output in an object store: plan in this new folder, which all steps see",
        "verify":
            "Check the CRC32 of every record of the checkpoint, also those not needed",
        "threads":
            "N: Threads to use (default: one per core, and more if that keeps a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (unchanged), or idle (after all other processes) (default: none)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "reshard": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`); all: every tag, each into a folder of its name",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "param_names":
            "FILE: File with the names of model.named_parameters(), one per line, for an optimizer of another framework that numbers its parameters",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "dp":
            "N: Data-parallel ranks of the new run, for each of its mp ranks",
        "tp":
            "N: Tensor-parallel ranks of the new run; default: as it was",
        "pp":
            "N: Pipeline stages of the new run; default: as it was",
        "stages":
            "LIST: The layers of the new pipeline stages: the first of each, 0,3,5, or uniform, parameters or blocks, as partition_method; default: as the present ones tell",
        "padded_vocab_size":
            "ROWS: Rows of the new run's vocabulary with their padding; default: as the program's saved arguments tell, else as it was",
        "kv_heads":
            "N: AutoTP: the model's key-value heads, by which its ranks share slices that are equal now; default: these stay equal",
        "ep":
            "N: Expert-parallel ranks of the new run, which divide --dp; default: unchanged",
        "stage":
            "S: ZeRO stage of the new run; default: unchanged",
        "sub_group_size":
            "ELEMENTS: Stage 3: zero_optimization.sub_group_size of the new run; default: unchanged",
        "ds_config":
            "FILE: The new run's DeepSpeed configuration: stage, precision, optimizer wrapper, round_robin_gradients and parameter_alignment are taken from it",
        "ds_version":
            "X.Y.Z: Release of DeepSpeed that will load it; default: the one that saved it",
        "like":
            "CHECKPOINT: Checkpoint of the new run, with its parameter groups, their order and layout. Needed if the input is weights to start from: a Hugging Face folder, a .safetensors or .bin file. Then everything but the values comes from it",
        "weights_from":
            "WEIGHTS: Weights to use in place of the checkpoint's own, for masters and 16-bit copies, such as the average of zero-to-fp32 --average. Optimizer states and steps stay, and training continues from there",
        "strip_prefix":
            "PREFIX: For weights: remove this from the front of names that have it",
        "add_prefix":
            "PREFIX: For weights: put this in front of all names",
        "key_map":
            "FILE: Rename, cut and join tensors by the rules in this file, lines of 'REGEX => REPLACEMENT', with their optimizer states",
        "unfreeze":
            "REGEX: Frozen parameters that the new run trains, with states that begin empty",
        "freeze":
            "REGEX: Trained parameters that the new run does not train",
        "drop":
            "REGEX: Parameters and buffers that the new run does not have",
        "add":
            "WEIGHTS: New parameters that the new run trains, such as adapters or a head: a Hugging Face folder, a .safetensors or .bin file",
        "resize_vocab":
            "N: Tokens of the new run: embeddings and heads get so many rows",
        "vocab":
            "REGEX: Parameters with a row for each token; default: those with the usual names",
        "new_rows":
            "mean|zero|WEIGHTS: Rows of new tokens: mean of all old ones, zero, or taken from weights (default: mean)",
        "plan_batch":
            "Show the batch settings that keep the global batch on the new ranks, and write ds_config_dpN.json with the one suggested",
        "follow_links":
            "Copy also the targets of links that leave the input",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: also show the work of each of N ranks (mpirun -n N)",
        "disk_rate":
            "RATE: With --ranks: also show the time if each reads and writes so many bytes a second",
        "force":
            "Replace reshard's earlier output",
        "fsync":
            "Wait until the data is on the disk before it gets its final name",
        "io":
            "MODE: buffered (through the page cache), direct (past it), or auto (direct where the output is more than the page cache takes at once) (default: auto)",
        "verify_output":
            "Read everything back from the disk before it gets its final name, and compare",
        "limit_rate":
            "RATE: Write at most so many bytes a second: digits and KB, MB, GB or TB",
        "stripe":
            "COUNT[,SIZE]: On Lustre: stripe the output over COUNT OSTs, or all, in stripes of SIZE (lfs setstripe); auto: all, in stripes of 4MiB",
        "resume":
            "Keep the progress if the run stops, and continue from earlier progress",
        "save_every":
            "SECONDS: With --resume: sync progress to disk every SECONDS (default: 10)",
        "plan_in":
            "DIR: With --emit-plan, --share or --resume, and an output in an object store: plan in this new folder, which all steps see",
        "verify":
            "Check the CRC32 of every record of the checkpoint, also those not needed",
        "zstd":
            "Write packed files, NAME.dspack, which all tools here read and ckpt-pack unpacks; --zstd=LEVEL, 1 to 19, compresses repetitive data harder",
        "threads":
            "N: Threads to use (default: one per core, and more if that keeps a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (unchanged), or idle (after all other processes) (default: none)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "pack": {
        "level":
            "N: zstd's level for repetitive data; other data is coded the same at all levels (default: 1)",
        "sha256":
            "Keep the SHA-256 of each file too, which takes an extra pass",
        "follow_links":
            "Copy also the targets of links that leave the input",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: also show the work of each of N ranks (mpirun -n N)",
        "disk_rate":
            "RATE: With --ranks: also show the time if each reads and writes so many bytes a second",
        "force":
            "Replace the output folder",
        "fsync":
            "Wait until the data is on the disk before it gets its final name",
        "io":
            "MODE: buffered (through the page cache), direct (past it), or auto (direct where the output is more than the page cache takes at once) (default: auto)",
        "verify_output":
            "Read everything back from the disk before it gets its final name, and compare",
        "limit_rate":
            "RATE: Write at most so many bytes a second: digits and KB, MB, GB or TB",
        "stripe":
            "COUNT[,SIZE]: On Lustre: stripe the output over COUNT OSTs, or all, in stripes of SIZE (lfs setstripe); auto: all, in stripes of 4MiB",
        "resume":
            "Keep the progress if the run stops, and continue from earlier progress",
        "save_every":
            "SECONDS: With --resume: sync progress to disk every SECONDS (default: 10)",
        "plan_in":
            "DIR: With --emit-plan, --share or --resume, and an output in an object store: plan in this new folder, which all steps see",
        "verify":
            "Check the CRC32 of every record, even of those without a tensor",
        "threads":
            "N: Threads to use (default: one per core, and more if that keeps a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (unchanged), or idle (after all other processes) (default: none)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "unpack": {
        "sha256":
            "Compare with the SHA-256 that pack --sha256 has kept",
        "follow_links":
            "Copy also the targets of links that leave the input",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: also show the work of each of N ranks (mpirun -n N)",
        "disk_rate":
            "RATE: With --ranks: also show the time if each reads and writes so many bytes a second",
        "force":
            "Replace the output folder",
        "fsync":
            "Wait until the data is on the disk before it gets its final name",
        "io":
            "MODE: buffered (through the page cache), direct (past it), or auto (direct where the output is more than the page cache takes at once) (default: auto)",
        "verify_output":
            "Read everything back from the disk before it gets its final name, and compare",
        "limit_rate":
            "RATE: Write at most so many bytes a second: digits and KB, MB, GB or TB",
        "stripe":
            "COUNT[,SIZE]: On Lustre: stripe the output over COUNT OSTs, or all, in stripes of SIZE (lfs setstripe); auto: all, in stripes of 4MiB",
        "resume":
            "Keep the progress if the run stops, and continue from earlier progress",
        "save_every":
            "SECONDS: With --resume: sync progress to disk every SECONDS (default: 10)",
        "plan_in":
            "DIR: With --emit-plan, --share or --resume, and an output in an object store: plan in this new folder, which all steps see",
        "threads":
            "N: Threads to use (default: one per core, and more if that keeps a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (unchanged), or idle (after all other processes) (default: none)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "strip": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`); all: every tag, each into a folder of its name",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "param_names":
            "FILE: File with the names of model.named_parameters(), one per line, for an optimizer of another framework that numbers its parameters",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "keep":
            "WHAT: weights: no optimizer states, and no weights that also exist as masters; resume: everything that DeepSpeed loads, without bytes that no tensor uses",
        "follow_links":
            "Copy also the targets of links that leave the input",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: also show the work of each of N ranks (mpirun -n N)",
        "disk_rate":
            "RATE: With --ranks: also show the time if each reads and writes so many bytes a second",
        "force":
            "Replace strip's earlier output",
        "fsync":
            "Wait until the data is on the disk before it gets its final name",
        "io":
            "MODE: buffered (through the page cache), direct (past it), or auto (direct where the output is more than the page cache takes at once) (default: auto)",
        "verify_output":
            "Read everything back from the disk before it gets its final name, and compare",
        "limit_rate":
            "RATE: Write at most so many bytes a second: digits and KB, MB, GB or TB",
        "stripe":
            "COUNT[,SIZE]: On Lustre: stripe the output over COUNT OSTs, or all, in stripes of SIZE (lfs setstripe); auto: all, in stripes of 4MiB",
        "resume":
            "Keep the progress if the run stops, and continue from earlier progress",
        "save_every":
            "SECONDS: With --resume: sync progress to disk every SECONDS (default: 10)",
        "plan_in":
            "DIR: With --emit-plan, --share or --resume, and an output in an object store: plan in this new folder, which all steps see",
        "verify":
            "Check the CRC32 of every record, also of those that are left out",
        "pack":
            "Pack the result, too (see ckpt-pack pack); --pack=LEVEL is its --level",
        "threads":
            "N: Threads to use (default: one per core, and more if that keeps a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (unchanged), or idle (after all other processes) (default: none)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "keep": {
        "to":
            "DIR: Place for the copies: a folder, or s3://",
        "pack":
            "Pack them (see ckpt-pack pack); --pack=LEVEL is its --level",
        "strip":
            "WHAT: Strip them (see ckpt-pack strip --keep)",
        "last":
            "N: Remove safe checkpoints from RUN, except the N newest",
        "every":
            "STEPS: Remove safe checkpoints, except those whose step is a multiple of STEPS",
        "best":
            "METRIC: Remove safe checkpoints, except the one with the best METRIC in the Trainer's trainer_state.json (METRIC=max or =min; default: min if it ends in loss)",
        "limit_rate":
            "RATE: Write at most so many bytes a second: digits and KB, MB, GB or TB",
        "interval":
            "SECONDS: Time between looks; a checkpoint that changed within it is not finished yet (default: 10)",
        "once":
            "Look once, handle the finished checkpoints, and exit",
        "force":
            "Accept a new place for --to; with --restore, replace existing files",
        "restore":
            "STEP: Copy back the checkpoint of that step or name, or the newest, and exit",
        "into":
            "DIR: With --restore: to this folder, not to RUN",
        "threads":
            "N: Threads to use (default: one per core, and more if that keeps a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (unchanged), or idle (after all other processes) (default: idle)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "inspect": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`)",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "gpus":
            "N: Estimate memory for N GPUs (default: as many as saved it)",
        "gpus_per_node":
            "M: GPUs of a node (default: as many as fit evenly, up to 8)",
        "gpu_memory":
            "SIZE: Mark the estimates that fit into a GPU with this much memory: 80GB",
        "html":
            "REPORT: Write it as a page for a browser, in one file",
        "force":
            "Replace REPORT if it exists",
        "values":
            "Read all tensors, and show in REPORT how their values are distributed",
        "param":
            "NAME: Show in REPORT which file holds which part of this tensor (default: of the largest); may be repeated",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "html": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`)",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "gpus":
            "N: Estimate memory for N GPUs (default: as many as saved it)",
        "gpus_per_node":
            "M: GPUs of a node (default: as many as fit evenly, up to 8)",
        "gpu_memory":
            "SIZE: Mark the estimates that fit into a GPU with this much memory: 80GB",
        "force":
            "Replace REPORT if it exists",
        "values":
            "Read all tensors, and show in REPORT how their values are distributed",
        "param":
            "NAME: Show in REPORT which file holds which part of this tensor (default: of the largest); may be repeated",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "tree": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`)",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "states":
            "The optimizer's states too",
        "match":
            "REGEX: Only tensors whose name matches",
        "sort":
            "KEY: By order (of the checkpoint) or a column; the largest first (default: order)",
        "no_fold":
            "Layers that are alike one by one, not as one",
        "depth":
            "N: No deeper than N levels",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "list_tensors": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`)",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "states":
            "The optimizer's states too",
        "match":
            "REGEX: Only tensors whose name matches",
        "sort":
            "KEY: By order (of the checkpoint) or a column; the largest first (default: order)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "where": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`)",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "state":
            "KEY: Not the tensor itself but this state of the optimizer",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "print": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`)",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "state":
            "KEY: Not the tensor itself but this state of the optimizer",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "raw": {
        "record":
            "RECORD: The pickle in this record of a zip (default: data.pkl)",
        "offset":
            "N: The pickle that starts at this byte of the file or record; in a .distcp file, the value that starts there (default: the first)",
        "key":
            "PATH: Only the value there: keys and indices with dots between them",
        "depth":
            "N: Levels of containers to show",
        "full":
            "Long texts in full",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "stats": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`)",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "states":
            "The optimizer's states too",
        "match":
            "REGEX: Only tensors whose name matches",
        "sort":
            "KEY: By order (of the checkpoint) or a column; the largest first (default: order)",
        "threads":
            "N: Threads to use (default: one per core, and more if that keeps a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (unchanged), or idle (after all other processes) (default: none)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "verify": {
        "tag":
            "TAG: Tag to read (default: the one in `latest`); all: every tag",
        "model":
            "NAME: Model to read, if several were saved, such as an actor and its critic",
        "root":
            "DIR: Another folder with files of the same tag, such as another node's own disk; may be repeated",
        "tp_rule":
            "RULE: How to merge tensor-parallel slices if the checkpoint has no rule: REGEX=cat:0, cat:1, replicated, average or sum",
        "finite":
            "No weight or state may be NaN or Inf",
        "manifest":
            "FILE: Compare all records and files with this manifest",
        "write_manifest":
            "FILE: Write SHA-256 of all records and files, unless a check fails",
        "force":
            "Replace the manifest that is there",
        "threads":
            "N: Threads to use (default: one per core, and more if that keeps a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (unchanged), or idle (after all other processes) (default: none)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "diff": {
        "tag_a":
            "TEXT: Tag to read of A (default: the one in `latest`)",
        "tag_b":
            "TEXT: Tag to read of B",
        "states":
            "The optimizer's states too, if both have them",
        "match":
            "REGEX: Only tensors whose name matches",
        "strip_prefix":
            "PREFIX: Remove this from the front of names that have it",
        "as_":
            "DTYPE: Round floating types to this one first; default: another type is a difference",
        "atol":
            "ATOL: As good as equal: |a - b| <= ATOL + RTOL * |b| (default: 0)",
        "rtol":
            "RTOL: See --atol (default: 0)",
        "all":
            "List every tensor in the model's order, also those that are equal",
        "top":
            "N: List only the N tensors that changed most",
        "html":
            "REPORT: Write it as a page for a browser, too, in one file",
        "force":
            "Replace REPORT if it exists",
        "threads":
            "N: Threads to use (default: one per core, and more if that keeps a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (unchanged), or idle (after all other processes) (default: none)",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
    "scan": {
        "allow":
            "REGEX: Unknown names (full MODULE.NAME) to count as harmless. Dangerous names stay dangerous",
        "dangerous_only":
            "Do not fail on unknown names and unreadable content",
        "strict":
            "Accepted; it is the default",
        "s3_endpoint":
            "URL: Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or else AWS)",
        "s3_region":
            "REGION: Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1)",
        "s3_path_style":
            "WHEN: on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)",
        "s3_unsigned":
            "Sign no requests: the bucket is public",
        "s3_requests":
            "N: Requests at once, of 8 MiB each (default: 32)",
        "max_memory":
            "SIZE: Fail rather than take more memory: digits and KB, MB, GB or TB",
    },
}  # fmt: skip
