# What cpack makes of the tools: TZST, an archive of a static build; DEB, a package of a shared one. Called by
# scripts/package.
set(CPACK_PACKAGE_NAME dsckpt)
set(CPACK_PACKAGE_VENDOR dsckpt)
set(CPACK_PACKAGE_CONTACT "dsckpt <dsckpt@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Converts and inspects DeepSpeed ZeRO checkpoints")
set(CPACK_PACKAGE_DESCRIPTION "Turns DeepSpeed checkpoints into weights, shards for another
number of GPUs, Universal Checkpoints, or the same in fewer
bytes, and shows what is inside them. As fast as cp, in memory
that does not grow with the model; without Python.")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGE_FILE_NAME "dsckpt-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_COMPONENTS_ALL tools)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ${DSCKPT_STATIC})  # of the archive
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/lib/cmake/DebianFiles.cmake")
include(CPack)
