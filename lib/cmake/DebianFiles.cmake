# Run by cpack before it packs: what Debian's policy wants besides (sections 12.1, 12.5 and 12.7).
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()

file(GLOB_RECURSE pages "${CPACK_TEMPORARY_DIRECTORY}/*.1")
list(GET pages 0 page)
string(REGEX REPLACE "/man/man1/.*" "/doc/${CPACK_PACKAGE_NAME}" folder "${page}")

file(WRITE "${folder}/copyright" "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ${CPACK_PACKAGE_NAME}

Files: *
Copyright: the authors of ${CPACK_PACKAGE_NAME}
License: Apache-2.0
 On Debian, the text of this licence is in /usr/share/common-licenses/Apache-2.0.
")
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)  # SOURCE_DATE_EPOCH's, if that is set
file(WRITE "${folder}/changelog" "${CPACK_PACKAGE_NAME} (${CPACK_PACKAGE_VERSION}) stable; urgency=medium

  * Built from its sources.

 -- ${CPACK_PACKAGE_CONTACT}  ${now}
")
execute_process(COMMAND gzip -9nf ${pages} "${folder}/changelog" COMMAND_ERROR_IS_FATAL ANY)
