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
            "TAG: Tag to read (default: what `latest` says); all: each of them, into a folder of its name",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
        "param_names":
            "FILE: Names of model.named_parameters(), one a line: for an optimizer of another framework that numbers its parameters",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "average":
            "Average several checkpoints of one model: sum(w * x) / sum(w) in double precision, rounded once to --dtype. Buffers are those of the newest, by its step, or else the last given",
        "last":
            "N: With --average: of one folder, its N newest complete tags",
        "weights":
            "W,W,...: With --average: w, one number above 0 a checkpoint in the order given (of --last the oldest first), divided by their sum; default: all alike",
        "ema":
            "DECAY: With --average: the exponential moving average over the checkpoints by their steps: A = the oldest, then A = DECAY * A + (1 - DECAY) * the next",
        "safe_serialization":
            "Write safetensors instead of .bin files",
        "max_shard_size":
            "SIZE: Largest file: digits and KB, MB, GB or TB; none: a single file (default: 5GB)",
        "exclude_frozen_parameters":
            "Leave out parameters that were not trained",
        "dtype":
            "TYPE: Floating tensors become float32, float16 or bfloat16 (fp32, fp16, bf16); keep: as stored (masters are float32); auto: what config.json says (default: float32)",
        "keep_fp32":
            "REGEX: These stay float32 whatever --dtype says",
        "include":
            "REGEX: Write only tensors whose name matches",
        "exclude":
            "REGEX: Leave out tensors whose name matches",
        "strip_prefix":
            "PREFIX: Take this from the front of names that have it",
        "key_map":
            "FILE: Rename, cut and join tensors by the rules in this file, lines of 'REGEX => REPLACEMENT', with their optimizer states",
        "names":
            "WHOSE: Call tensors as save_pretrained does (hub), or as the module has them (module); default: hub for a model that a config.json of transformers 5 names",
        "hf_config":
            "DIR: Copy configuration, tokenizer and processor files from this Hugging Face folder, so that from_pretrained loads the result; default: those beside the checkpoint. none: copy none",
        "states":
            "Write the optimizer's states too, as optimizer_states/STATE.safetensors",
        "torch_optimizer":
            "Write the optimizer too, as optimizer.pt, which optimizer.load_state_dict takes",
        "peft":
            "DIR: Write the PEFT adapter that was trained to this folder, and nothing else",
        "merge":
            "BASE: Write the model with the PEFT adapter that was trained merged into BASE, the model before: a Hugging Face folder, other weights, or the word checkpoint: what the run has saved of it itself. The checkpoint may be a folder of peft's save_pretrained",
        "peft_config":
            "FILE: With --peft or --merge: its adapter_config.json; default: the one beside the shards, or what the tensors tell",
        "lora_alpha":
            "ALPHA: With --peft or --merge, where there is no adapter_config.json: lora_alpha",
        "allow_missing":
            "Write what is complete without files that are missing or damaged, and list what is not",
        "debug":
            "Say what was found in the checkpoint",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: show also what each of N ranks (mpirun -n N) would do",
        "disk_rate":
            "RATE: With --ranks: and how long it takes if each reads and writes so many bytes a second",
        "network_rate":
            "RATE: With --ranks: the same, if rank 0 sends so many bytes a second",
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
            "Keep what is done if the run stops, and go on with what was kept",
        "save_every":
            "SECONDS: With --resume: make sure of what is done every so many seconds (default: 10)",
        "verify":
            "Check the CRC32 of every record of the checkpoint, also those not needed",
        "zstd":
            "Write packed files, NAME.dspack, which all tools here read and ckpt-pack unpacks; --zstd=LEVEL, 1 to 19, compresses harder what repeats",
        "threads":
            "N: Threads to use (default: one a core, and as many more as keep a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (as started), or idle (when nobody else asks) (default: none)",
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
            "TAG: Tag to read (default: what `latest` says); all: each of them, into a folder of its name",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
        "param_names":
            "FILE: Names of model.named_parameters(), one a line: for an optimizer of another framework that numbers its parameters",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "last":
            "N: With --average: of one folder, its N newest complete tags",
        "weights":
            "W,W,...: With --average: w, one number above 0 a checkpoint in the order given (of --last the oldest first), divided by their sum; default: all alike",
        "ema":
            "DECAY: With --average: the exponential moving average over the checkpoints by their steps: A = the oldest, then A = DECAY * A + (1 - DECAY) * the next",
        "safe_serialization":
            "Write safetensors instead of .bin files",
        "max_shard_size":
            "SIZE: Largest file: digits and KB, MB, GB or TB; none: a single file (default: 5GB)",
        "exclude_frozen_parameters":
            "Leave out parameters that were not trained",
        "dtype":
            "TYPE: Floating tensors become float32, float16 or bfloat16 (fp32, fp16, bf16); keep: as stored (masters are float32); auto: what config.json says (default: float32)",
        "keep_fp32":
            "REGEX: These stay float32 whatever --dtype says",
        "include":
            "REGEX: Write only tensors whose name matches",
        "exclude":
            "REGEX: Leave out tensors whose name matches",
        "strip_prefix":
            "PREFIX: Take this from the front of names that have it",
        "key_map":
            "FILE: Rename, cut and join tensors by the rules in this file, lines of 'REGEX => REPLACEMENT', with their optimizer states",
        "names":
            "WHOSE: Call tensors as save_pretrained does (hub), or as the module has them (module); default: hub for a model that a config.json of transformers 5 names",
        "hf_config":
            "DIR: Copy configuration, tokenizer and processor files from this Hugging Face folder, so that from_pretrained loads the result; default: those beside the checkpoint. none: copy none",
        "states":
            "Write the optimizer's states too, as optimizer_states/STATE.safetensors",
        "torch_optimizer":
            "Write the optimizer too, as optimizer.pt, which optimizer.load_state_dict takes",
        "peft":
            "DIR: Write the PEFT adapter that was trained to this folder, and nothing else",
        "merge":
            "BASE: Write the model with the PEFT adapter that was trained merged into BASE, the model before: a Hugging Face folder, other weights, or the word checkpoint: what the run has saved of it itself. The checkpoint may be a folder of peft's save_pretrained",
        "peft_config":
            "FILE: With --peft or --merge: its adapter_config.json; default: the one beside the shards, or what the tensors tell",
        "lora_alpha":
            "ALPHA: With --peft or --merge, where there is no adapter_config.json: lora_alpha",
        "allow_missing":
            "Write what is complete without files that are missing or damaged, and list what is not",
        "debug":
            "Say what was found in the checkpoint",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: show also what each of N ranks (mpirun -n N) would do",
        "disk_rate":
            "RATE: With --ranks: and how long it takes if each reads and writes so many bytes a second",
        "network_rate":
            "RATE: With --ranks: the same, if rank 0 sends so many bytes a second",
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
            "Keep what is done if the run stops, and go on with what was kept",
        "save_every":
            "SECONDS: With --resume: make sure of what is done every so many seconds (default: 10)",
        "verify":
            "Check the CRC32 of every record of the checkpoint, also those not needed",
        "zstd":
            "Write packed files, NAME.dspack, which all tools here read and ckpt-pack unpacks; --zstd=LEVEL, 1 to 19, compresses harder what repeats",
        "threads":
            "N: Threads to use (default: one a core, and as many more as keep a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (as started), or idle (when nobody else asks) (default: none)",
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
            "TAG: Which checkpoint; default: what `latest` says; all: each of them, into a folder of its name",
        "param_names":
            "FILE: Names of model.named_parameters(), one a line: for an optimizer of another framework that numbers its parameters",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "no_strict":
            "Patterns of universal_checkpoint_info that fit no parameter are no error",
        "num_extract_workers":
            "N: The larger of the two is the number of threads, if --threads is not given",
        "num_merge_workers":
            "N: See --num-extract-workers",
        "keep_temp_folder":
            "Accepted and without effect: there is no temporary folder",
        "inject_missing_state":
            "Accepted and without effect: a universal_checkpoint_info that is not needed is not missed, one that is needed cannot be made up",
        "like":
            "CHECKPOINT: Of weights: a checkpoint of the run that starts from them, which tells trained, frozen and tied parameters and the optimizer's states",
        "strip_prefix":
            "PREFIX: Of weights: take this from the front of names that have it",
        "add_prefix":
            "PREFIX: Of weights: put this in front of all names",
        "key_map":
            "FILE: Rename, cut and join tensors by the rules in this file, lines of 'REGEX => REPLACEMENT', with their optimizer states",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: show also what each of N ranks (mpirun -n N) would do",
        "disk_rate":
            "RATE: With --ranks: and how long it takes if each reads and writes so many bytes a second",
        "network_rate":
            "RATE: With --ranks: the same, if rank 0 sends so many bytes a second",
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
            "Keep what is done if the run stops, and go on with what was kept",
        "save_every":
            "SECONDS: With --resume: make sure of what is done every so many seconds (default: 10)",
        "verify":
            "Check the CRC32 of every record of the checkpoint, also those not needed",
        "zstd":
            "Write packed files, NAME.dspack, which all tools here read and ckpt-pack unpacks; --zstd=LEVEL, 1 to 19, compresses harder what repeats",
        "threads":
            "N: Threads to use (default: one a core, and as many more as keep a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (as started), or idle (when nobody else asks) (default: none)",
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
            "TAG: Tag to read (default: what `latest` says); all: each of them, into a folder of its name",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
        "param_names":
            "FILE: Names of model.named_parameters(), one a line: for an optimizer of another framework that numbers its parameters",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "dp":
            "N: Ranks that are to load it: tensors are cut as FSDP2 cuts them. Another number of ranks can load it too, and reads more",
        "preset":
            "WHO: Whose keys and folders: of torch, dcp.load of {\"model\", \"optim\"}; of Accelerate; of transformers' Trainer; of torchtitan; of Lightning Fabric (default: torch)",
        "dtype":
            "TYPE: The model's floating tensors become float32, float16 or bfloat16 (fp32, fp16, bf16); keep: as stored (masters are float32). Optimizer states stay (default: float32)",
        "key_map":
            "FILE: Rename, cut and join tensors by the rules in this file, lines of 'REGEX => REPLACEMENT', with their optimizer states",
        "weights_only":
            "Leave out the optimizer, the scheduler and the counters",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: show also what each of N ranks (mpirun -n N) would do",
        "disk_rate":
            "RATE: With --ranks: and how long it takes if each reads and writes so many bytes a second",
        "network_rate":
            "RATE: With --ranks: the same, if rank 0 sends so many bytes a second",
        "force":
            "Replace what to-dcp wrote there before",
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
            "Keep what is done if the run stops, and go on with what was kept",
        "save_every":
            "SECONDS: With --resume: make sure of what is done every so many seconds (default: 10)",
        "verify":
            "Check the CRC32 of every record of the checkpoint, also those not needed",
        "threads":
            "N: Threads to use (default: one a core, and as many more as keep a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (as started), or idle (when nobody else asks) (default: none)",
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
            "TAG: Tag to read (default: what `latest` says); all: each of them, into a folder of its name",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
        "param_names":
            "FILE: Names of model.named_parameters(), one a line: for an optimizer of another framework that numbers its parameters",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "dp":
            "N: Data-parallel ranks of the new run; pipeline stages and tensor-parallel ranks stay",
        "ep":
            "N: Expert-parallel ranks of the new run, which divide --dp; default: as it was",
        "stage":
            "S: ZeRO stage of the new run; default: as it was",
        "sub_group_size":
            "ELEMENTS: Stage 3: zero_optimization.sub_group_size of the new run; default: as it was",
        "ds_config":
            "FILE: The new run's DeepSpeed configuration: stage, precision, optimizer wrapper, round_robin_gradients and parameter_alignment are taken from it",
        "ds_version":
            "X.Y.Z: The release of DeepSpeed that is to load it; default: the one that saved it",
        "like":
            "CHECKPOINT: A checkpoint that the new run has saved: parameter groups, their order and the layout are taken from it. Needed where the input is weights to start from, a Hugging Face folder, a .safetensors or .bin file: then it has all but the values",
        "weights_from":
            "WEIGHTS: Weights that the checkpoint gets instead of its own, such as the average that zero-to-fp32 --average wrote: masters and 16-bit copies. Optimizer states and steps stay, and training goes on from there",
        "strip_prefix":
            "PREFIX: Of weights: take this from the front of names that have it",
        "add_prefix":
            "PREFIX: Of weights: put this in front of all names",
        "key_map":
            "FILE: Rename, cut and join tensors by the rules in this file, lines of 'REGEX => REPLACEMENT', with their optimizer states",
        "plan_batch":
            "Show the batch settings that keep the global batch on the new ranks, and write ds_config_dpN.json with the one suggested",
        "follow_links":
            "Copy also what links in the input lead to outside of it",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: show also what each of N ranks (mpirun -n N) would do",
        "disk_rate":
            "RATE: With --ranks: and how long it takes if each reads and writes so many bytes a second",
        "network_rate":
            "RATE: With --ranks: the same, if rank 0 sends so many bytes a second",
        "force":
            "Replace what reshard wrote there before",
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
            "Keep what is done if the run stops, and go on with what was kept",
        "save_every":
            "SECONDS: With --resume: make sure of what is done every so many seconds (default: 10)",
        "verify":
            "Check the CRC32 of every record of the checkpoint, also those not needed",
        "zstd":
            "Write packed files, NAME.dspack, which all tools here read and ckpt-pack unpacks; --zstd=LEVEL, 1 to 19, compresses harder what repeats",
        "threads":
            "N: Threads to use (default: one a core, and as many more as keep a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (as started), or idle (when nobody else asks) (default: none)",
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
            "N: zstd's level for what repeats; what does not is coded the same at all levels (default: 1)",
        "sha256":
            "Keep the SHA-256 of each file, too, which takes a pass of its own",
        "follow_links":
            "Copy also what links in the input lead to outside of it",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: show also what each of N ranks (mpirun -n N) would do",
        "disk_rate":
            "RATE: With --ranks: and how long it takes if each reads and writes so many bytes a second",
        "network_rate":
            "RATE: With --ranks: the same, if rank 0 sends so many bytes a second",
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
            "Keep what is done if the run stops, and go on with what was kept",
        "save_every":
            "SECONDS: With --resume: make sure of what is done every so many seconds (default: 10)",
        "verify":
            "Check the CRC32 of every record, also of those that hold no tensor",
        "threads":
            "N: Threads to use (default: one a core, and as many more as keep a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (as started), or idle (when nobody else asks) (default: none)",
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
            "Copy also what links in the input lead to outside of it",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: show also what each of N ranks (mpirun -n N) would do",
        "disk_rate":
            "RATE: With --ranks: and how long it takes if each reads and writes so many bytes a second",
        "network_rate":
            "RATE: With --ranks: the same, if rank 0 sends so many bytes a second",
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
            "Keep what is done if the run stops, and go on with what was kept",
        "save_every":
            "SECONDS: With --resume: make sure of what is done every so many seconds (default: 10)",
        "threads":
            "N: Threads to use (default: one a core, and as many more as keep a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (as started), or idle (when nobody else asks) (default: none)",
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
            "TAG: Tag to read (default: what `latest` says); all: each of them, into a folder of its name",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
        "param_names":
            "FILE: Names of model.named_parameters(), one a line: for an optimizer of another framework that numbers its parameters",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "keep":
            "WHAT: weights: without optimizer states and the weights that there are masters of; resume: all that DeepSpeed loads, without bytes that no tensor reaches",
        "follow_links":
            "Copy also what links in the input lead to outside of it",
        "dry_run":
            "Show what would be written; write nothing",
        "ranks":
            "N: With --dry-run: show also what each of N ranks (mpirun -n N) would do",
        "disk_rate":
            "RATE: With --ranks: and how long it takes if each reads and writes so many bytes a second",
        "network_rate":
            "RATE: With --ranks: the same, if rank 0 sends so many bytes a second",
        "force":
            "Replace what strip wrote there before",
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
            "Keep what is done if the run stops, and go on with what was kept",
        "save_every":
            "SECONDS: With --resume: make sure of what is done every so many seconds (default: 10)",
        "verify":
            "Check the CRC32 of every record, also of those that are left out",
        "pack":
            "Pack the result, too (see ckpt-pack pack); --pack=LEVEL is its --level",
        "threads":
            "N: Threads to use (default: one a core, and as many more as keep a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (as started), or idle (when nobody else asks) (default: none)",
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
            "DIR: Where they are brought: a folder, or s3://",
        "pack":
            "Pack them (see ckpt-pack pack); --pack=LEVEL is its --level",
        "strip":
            "WHAT: Strip them (see ckpt-pack strip --keep)",
        "last":
            "N: Once they are safe, remove checkpoints from RUN but the N newest",
        "every":
            "STEPS: The same, but those of each so many steps stay",
        "best":
            "METRIC: The same, but the one of the best METRIC in the Trainer's trainer_state.json stays (METRIC=max or =min; default: what ends in loss is to be small)",
        "limit_rate":
            "RATE: Write at most so many bytes a second: digits and KB, MB, GB or TB",
        "interval":
            "SECONDS: Look every so many seconds; what has changed within them is not over yet (default: 10)",
        "once":
            "Look once, do what there is to do, and end",
        "force":
            "Take the folder of --to though it is not the one before; with --restore replace what is there",
        "restore":
            "STEP: Bring back the checkpoint of that step, or of that name, or the newest, and end",
        "into":
            "DIR: With --restore: to this folder, not to RUN",
        "threads":
            "N: Threads to use (default: one a core, and as many more as keep a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (as started), or idle (when nobody else asks) (default: idle)",
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
            "TAG: Tag to read (default: what `latest` says)",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
        "gpus":
            "N: Estimate memory for N GPUs (default: as many as saved it)",
        "gpus_per_node":
            "M: GPUs of a node (default: as many as fit evenly, up to 8)",
        "gpu_memory":
            "SIZE: Say which of the estimates fit into a GPU of so much: 80GB",
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
            "TAG: Tag to read (default: what `latest` says)",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
        "gpus":
            "N: Estimate memory for N GPUs (default: as many as saved it)",
        "gpus_per_node":
            "M: GPUs of a node (default: as many as fit evenly, up to 8)",
        "gpu_memory":
            "SIZE: Say which of the estimates fit into a GPU of so much: 80GB",
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
            "TAG: Tag to read (default: what `latest` says)",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
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
            "TAG: Tag to read (default: what `latest` says)",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
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
            "TAG: Tag to read (default: what `latest` says)",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
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
            "TAG: Tag to read (default: what `latest` says)",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
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
            "N: The pickle that starts at this byte of the file or record; of a .distcp the value that does (default: the first)",
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
            "TAG: Tag to read (default: what `latest` says)",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
        "states":
            "The optimizer's states too",
        "match":
            "REGEX: Only tensors whose name matches",
        "sort":
            "KEY: By order (of the checkpoint) or a column; the largest first (default: order)",
        "threads":
            "N: Threads to use (default: one a core, and as many more as keep a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (as started), or idle (when nobody else asks) (default: none)",
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
            "TAG: Tag to read (default: what `latest` says); all: each of them",
        "model":
            "NAME: Where several models were saved, such as an actor and its critic: which",
        "root":
            "DIR: Another folder with files of the same tag: what another node kept on its own disk; once for each",
        "tp_rule":
            "RULE: How tensor-parallel slices go together where the checkpoint does not say it: REGEX=cat:0, cat:1, replicated, average or sum",
        "finite":
            "No weight or state may be NaN or Inf",
        "manifest":
            "FILE: Compare all records and files with this manifest",
        "write_manifest":
            "FILE: Write SHA-256 of all records and files, if nothing is wrong",
        "force":
            "Replace the manifest that is there",
        "threads":
            "N: Threads to use (default: one a core, and as many more as keep a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (as started), or idle (when nobody else asks) (default: none)",
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
            "TEXT: Tag to read of A (default: what `latest` says)",
        "tag_b":
            "TEXT: Tag to read of B",
        "states":
            "The optimizer's states too, if both have them",
        "match":
            "REGEX: Only tensors whose name matches",
        "strip_prefix":
            "PREFIX: Take this from the front of names that have it",
        "as_":
            "DTYPE: Round floating types to this one first; default: another type is a difference",
        "atol":
            "ATOL: As good as equal: |a - b| <= ATOL + RTOL * |b| (default: 0)",
        "rtol":
            "RTOL: See --atol (default: 0)",
        "all":
            "List every tensor in the model's order, also those that are equal",
        "top":
            "N: List so many, those that changed most",
        "html":
            "REPORT: Write it as a page for a browser, too, in one file",
        "force":
            "Replace REPORT if it exists",
        "threads":
            "N: Threads to use (default: one a core, and as many more as keep a disk busy)",
        "io_class":
            "CLASS: Priority at the disk: none (as started), or idle (when nobody else asks) (default: none)",
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
            "REGEX: Unknown names (MODULE.NAME, in full) that are harmless. What is known to be dangerous stays so",
        "dangerous_only":
            "Do not fail on what is unknown or cannot be read",
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
