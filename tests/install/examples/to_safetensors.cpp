// Makes safetensors of a checkpoint: open, plan, run, and say how far it is.
#include <dsckpt/error.h>
#include <dsckpt/weights.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const dsckpt::Source source = dsckpt::Source::open(argv[1]);
    const dsckpt::Job job = dsckpt::plan_weights(source, {.format = &dsckpt::kSafetensors});
    for (const std::string& note : job.notes()) std::printf("note: %s\n", note.c_str());
    dsckpt::run(job, argv[2], {.force = true}, [](uint64_t done, uint64_t total) {
      std::printf("%llu of %llu bytes\n", static_cast<unsigned long long>(done),
                  static_cast<unsigned long long>(total));
      return true;  // false would stop it
    });
  } catch (const dsckpt::Error& error) {
    std::fprintf(stderr, "%s\n%s\n", error.what(), error.hint().c_str());
    return 3;
  }
}
