"""What a release consists of: the image (`make image`) and the chart (`make chart`), as OCI archives in `build/`.

No container engine and no registry is needed. `release.oci` writes archives, `release.debian` provides the base image,
`release.programs` what is installed on it. Nothing at run time imports this package, and the image does not contain it.
"""
